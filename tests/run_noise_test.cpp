// Tests of the bounds of comparisons of runs: noise widens them, and errors remain.
#include "run_noise.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/stream/transfer.h"
#include "dist/transport/thread_ranks.h"
#include "rank_jobs.h"
#include "test_communicators.h"
#include "weights/tensor_pieces.h"

namespace hone {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

TEST(RunNoise, IsNotMeasuredWhereTheBoundsHold) {
  const auto never = [](uint64_t) -> Differences {
    ADD_FAILURE() << "a repetition";
    return {};
  };
  EXPECT_THAT(unexplained({{"loss", 0, 1e-6, 1e-5}, {"loss", 1, 1e-5, 1e-5}}, never), IsEmpty());
  EXPECT_THAT(unexplained({{"loss", 0, 0.05, 1e-5}}, never), ElementsAre(HasSubstr("loss of step 0 is off by 0.05")))
      << "no noise that counts explains it";
  EXPECT_THAT(unexplained({{"loss", 0, NAN, 1e-5}}, never), ElementsAre(HasSubstr("nan")));
}

TEST(RunNoise, WidensTheBoundsOfItsStepAndLaterOnes) {
  const auto remains = [](double error, size_t step) {
    return !unexplained({{"loss", step, error, 1e-5}}, [](uint64_t seed) -> Differences {
              return {{"norm", 0, 1, 1e-5}, {"loss", 1, seed == 3 ? 1e-3 : 0, 1e-5}};
            }).empty();
  };
  EXPECT_TRUE(remains(1e-3, 0));
  EXPECT_FALSE(remains(2e-3, 1));
  EXPECT_FALSE(remains(2e-3, 2)) << "what a run has left it need not come back to";
  EXPECT_TRUE(remains(2.1e-3, 1));
}

TEST(RunNoise, IsMeasuredAsOftenAsItMayHelp) {
  uint64_t repetitions = 0;
  const auto count = [&](double noise) {
    return [&repetitions, noise](uint64_t) -> Differences {
      ++repetitions;
      return {{"loss", 0, noise, 0}};
    };
  };
  EXPECT_THAT(unexplained({{"loss", 0, 1e-3, 1e-5}}, count(1e-3)), IsEmpty());
  EXPECT_EQ(repetitions, 1u);
  EXPECT_THAT(unexplained({{"loss", 0, 1e-3, 1e-5}}, count(0)), Not(IsEmpty()));
  EXPECT_EQ(repetitions, 1 + kMostJitters);
}

TEST(RunNoise, JitterMovesHalfOfTheValuesToANeighbour) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    std::vector<float> values(1000, 1.5f), zeros(10, 0.0f);
    jitter(values, dtype, 1);
    jitter(zeros, dtype, 1);
    EXPECT_EQ(zeros, std::vector<float>(10, 0.0f));
    const float ulp = dtype == DType::kF32 ? 0x1p-23f : 0x1p-7f;
    int up = 0, down = 0;
    for (const float value : values) {
      EXPECT_TRUE(value == 1.5f || value == 1.5f + ulp || value == 1.5f - ulp) << value;
      up += value > 1.5f;
      down += value < 1.5f;
    }
    // Five standard deviations of 250 of 1000.
    EXPECT_NEAR(up, 250, 70);
    EXPECT_NEAR(down, 250, 70);
  }
}

/// What the second rank adds to a sum of gradients counts twice.
class TwiceCommunicator : public HostedCommunicator {
 public:
  using HostedCommunicator::HostedCommunicator;

  std::unique_ptr<Communicator> split(int colour) override {
    return std::make_unique<TwiceCommunicator>(inner().split(colour));
  }
  void all_reduce_sum(Stream& stream, Tensor inout) override {
    twice(stream, inout);
    HostedCommunicator::all_reduce_sum(stream, inout);
  }
  void reduce_scatter_sum(Stream& stream, Tensor full, std::span<const Part> parts, Tensor own) override {
    twice(stream, full);
    HostedCommunicator::reduce_scatter_sum(stream, full, parts, own);
  }

 private:
  void twice(Stream& stream, const Tensor& tensor) {
    constexpr int64_t kLeastGradients = 256;  // measurements have fewer
    if (control().rank() != 1 || tensor.dtype != DType::kF32 || tensor.numel() < kLeastGradients) return;
    stream.synchronize();
    std::vector<float> values = host_values<float>(tensor);
    for (float& value : values) value *= 2;
    copy_from_host(tensor, values.data(), tensor.bytes());
  }
};

/// Sets the gradient of one expert to zero, in the first tensor of experts that has one.
void drop_gradient_of_an_expert(ParameterStore& store) {
  for (const Parameter* p : store.trainable()) {
    if (!p->spec().of_experts) continue;
    std::vector<float> values = host_values<float>(p->gradient().whole());
    const auto size = static_cast<size_t>(p->shape().numel() / p->shape()[0]);
    for (size_t begin = 0; begin < values.size(); begin += size) {
      const auto expert = std::span(values).subspan(begin, size);
      if (std::all_of(expert.begin(), expert.end(), [](float x) { return x == 0; })) continue;
      std::fill(expert.begin(), expert.end(), 0.0f);
      return copy_from_host(p->gradient().whole(), values.data(), p->gradient().whole().bytes());
    }
  }
  FAIL() << "no expert has a gradient";
}

class PlantedError : public ::testing::TestWithParam<std::string> {
 protected:
  /// Two of three have a router with nearly equal scores, or gradients near 0, at some level of instruction sets.
  std::vector<Job> jobs() const {
    std::vector<Job> jobs;
    for (const char* adapter : {"", "lora_experts_init"}) {
      jobs.push_back({.model = GetParam(), .adapter = adapter, .steps = steps_of(GetParam(), {2, 1, 2})});
    }
    return jobs;
  }
  static std::vector<std::string> remaining(const Outcome& ours, const Outcome& one, const Job& job) {
    const auto compare = [&](const Outcome& a, const Outcome& b) { return differences(a, b, job); };
    return unexplained(compare(ours, one), job, compare);
  }
};

TEST_P(PlantedError, AGradientThatIsLostRemains) {
  for (const Job& job : jobs()) {
    Job wrong = job;
    wrong.before_update = drop_gradient_of_an_expert;
    const Outcome one = train(job, nullptr, ZeroStage::kNone);
    EXPECT_THAT(remaining(train(wrong, nullptr, ZeroStage::kNone), one, job), Not(IsEmpty())) << job.adapter;
  }
}

TEST_P(PlantedError, AShareThatCountsTwiceRemains) {
  for (const Job& job : jobs()) {
    const Outcome one = train(job, nullptr, ZeroStage::kNone);
    for (const ZeroStage stage : {ZeroStage::kNone, ZeroStage::kGradients}) {
      std::vector<Outcome> wrong(2);
      run_ranks(2, [&](Communicator& ranks) {
        TwiceCommunicator twice(ranks);
        wrong[static_cast<size_t>(ranks.rank())] = train(job, &twice, stage);
      });
      EXPECT_THAT(remaining(wrong[0], one, job), Not(IsEmpty())) << job.adapter << " " << traced(2, stage);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, PlantedError, ::testing::Values("qwen3_moe", "qwen2_moe", "qwen3_next"),
                         [](const auto& test) { return test.param; });

}  // namespace
}  // namespace hone
