"""`converted`: calls `convert` and asserts that something was replaced. Otherwise a test of a converted model proves
nothing."""

from __future__ import annotations

from typing import Any
from unittest import mock

from fusedops.conversion import Report


def converted(package: Any, model: Any, *classes: str, verbose: bool = False, **options: Any) -> Any:
    """Converts a model, asserts by the report of `convert` that something was replaced, and returns the model.

    Args:
        package: `fusedops.torch` or `fusedops.tf.keras`.
        classes: names of original classes, each of which must be among those replaced. The attention of a config of
            transformers counts as replaced if the config names ours.
        options: options of `convert`.
    """
    with mock.patch.object(Report, "publish", autospec=True, side_effect=Report.publish) as publish:
        assert package.convert(model, verbose=verbose, **options) is model
    publish.assert_called_once()
    report = publish.call_args.args[0]
    replaced = [each for each in report.outcomes if each.status == "replaced"]
    renamed = [line for line in report.further if " -> " in line]
    assert replaced or renamed, f"convert replaced nothing:\n{report}"
    assert all(type(each.thing) is not each.kind for each in replaced)
    missing = set(classes) - {each.kind.__name__ for each in replaced}
    missing = {name for name in missing if not any(name in line for line in renamed)}
    assert not missing, f"convert replaced no {', '.join(sorted(missing))}:\n{report}"
    return model
