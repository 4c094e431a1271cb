#include "ops/attention/vector/score_compute.h"

namespace hone::cpu {

namespace {
struct Avx512Native {
  typedef float F __attribute__((vector_size(64)));
  typedef int32_t I __attribute__((vector_size(64)));
};
using Computer = ScoreComputer<Avx512Native>;
}  // namespace

constinit const ScoreKernel kScoreKernelAvx512{&Computer::softmax, &Computer::probabilities, &Computer::gradients};

}  // namespace hone::cpu
