#include "ops/group_sums/group_sums.h"

namespace hone::cpu {

void group_sums(const Context& context, const GroupSumsArgs& args) {
  context.launch([args](ThreadPool&) {
    const float *values = args.values.as<float>(), *weights = args.weights.as<float>();
    const int32_t* groups = args.groups.as<int32_t>();
    double* sums = args.sums.as<double>();
    for (int64_t i = 0; i < args.values.numel(); ++i) {
      const int32_t group = groups[i];
      if (weights[i] == 0.0f || group < 0 || group >= args.sums.shape[0]) continue;
      sums[2 * group] += static_cast<double>(weights[i]) * static_cast<double>(values[i]);
      sums[2 * group + 1] += static_cast<double>(weights[i]);
    }
  });
}

}  // namespace hone::cpu
