"""Programs that tests run in their own processes, by `helpers.running.run_program`."""
