#include "ops/attention/vector/score_compute.h"

namespace hone::cpu {

namespace {
struct BaselineNative {
  typedef float F __attribute__((vector_size(16)));
  typedef int32_t I __attribute__((vector_size(16)));
};
using Computer = ScoreComputer<BaselineNative>;
}  // namespace

constinit const ScoreKernel kScoreKernelBaseline{&Computer::softmax, &Computer::probabilities, &Computer::gradients};

}  // namespace hone::cpu
