#include "ops/attention/vector/score_compute.h"

namespace hone::cpu {

namespace {
struct Avx2Native {
  typedef float F __attribute__((vector_size(32)));
  typedef int32_t I __attribute__((vector_size(32)));
};
using Computer = ScoreComputer<Avx2Native>;
}  // namespace

constinit const ScoreKernel kScoreKernelAvx2{&Computer::softmax, &Computer::probabilities, &Computer::gradients};

}  // namespace hone::cpu
