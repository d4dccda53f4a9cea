#include "core/cuda/lists.cuh"
#include "ops/optimizers/sgd.h"

namespace fusedops {

Status sgd_cuda(const Call& call) {
  return with_sgd_update(call, [&]<class Update>(const Update& update, const ListViews<Update>& lists) {
    return cuda::update_lists(call.context, update, lists);
  });
}

}  // namespace fusedops
