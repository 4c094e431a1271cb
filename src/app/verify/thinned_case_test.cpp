// Thinned cases reject the same errors as full cases: errors of ten times the bound, planted in each computed tensor
// and in each number of the files.
#include "app/verify/thinned_case.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <functional>
#include <numeric>

#include "app/verify/check.h"
#include "app/verify/replay.h"
#include "app/verify/verify.h"
#include "core/base/error.h"
#include "core/base/philox.h"
#include "core/cpu/thread_pool.h"

namespace hone {
namespace {

namespace fs = std::filesystem;

const fs::path kGoldens = fs::path(HONE_SOURCE_DIR) / "tests/fixtures/goldens";
constexpr double kGradient = 1e-4, kChange = 2e-2;
constexpr const char* kGradientFiles[] = {"grads", "packed_grads", "accumulation_grads"};

StepData step_of(const std::vector<MicroBatch>& batches) {
  StepData data;
  data.micro_batches = batches;
  return data;
}

/// The computed values of the tensors in a case.
struct Ours {
  std::map<std::string, HostTensors> gradients;  ///< by name of file
  HostTensors initial, final;

  HostTensors change() const { return changes(initial, final, ""); }
};

Ours compute(const std::string& name) {
  const GoldenCase golden = GoldenCase::read(kGoldens / name);
  std::vector<MicroBatch> batches;
  for (const auto& batch : golden.batches) batches.push_back(pack_documents(batch));
  const MicroBatch packed = pack_documents(golden.documents.documents);
  const int64_t tokens = std::max(batches[0].tokens(), packed.tokens());
  ThreadPool pool(1);
  Stream stream(Device{}, pool);
  Replay replay(kGoldens / name / "model", stream,
                {tokens, std::max(batches[0].documents(), packed.documents()), tokens, tokens}, {});
  const double aux = golden.aux ? replay.config().moe.router_aux_loss_coef : 0.0;
  Ours ours;
  const auto measure = [&](const char* file, double coefficient, const std::vector<MicroBatch>& data) {
    const auto engine = replay.make_engine(coefficient);
    engine->accumulate(step_of(data), 0);
    engine->measure();
    ours.gradients[file] = replay.gradients();
  };
  measure(kGradientFiles[0], aux, {batches[0]});
  measure(kGradientFiles[1], 0, {packed});
  std::vector<MicroBatch> accumulated;
  for (const int64_t i : golden.accumulation.batches) accumulated.push_back(batches[static_cast<size_t>(i)]);
  measure(kGradientFiles[2], 0, accumulated);
  ours.initial = replay.values();
  const auto engine = replay.make_engine(aux, golden.full.optimizer.options());
  for (size_t i = 0; i < golden.full.steps.size(); ++i) {
    engine->accumulate(step_of({batches[i]}), static_cast<int64_t>(i));
    engine->update({golden.full.learning_rate, static_cast<int64_t>(i)});
  }
  ours.final = replay.values();
  return ours;
}

ReferenceTensors thinned_all(const HostTensors& tensors) {
  ReferenceTensors result;
  for (const auto& [name, tensor] : tensors) result[name] = thinned(tensor);
  return result;
}

// -- Errors in computed values

using Direction = std::vector<double>;

struct Plant {
  const char* name;
  /// The error to add to a tensor, before scaling.
  Direction (*of)(const HostTensor&, PhiloxSequence&);
};

size_t size_of_row(const HostTensor& tensor) { return tensor.values.size() / static_cast<size_t>(tensor.rows()); }

Direction difference(const HostTensor& from, const std::vector<float>& to) {
  Direction e(to.size());
  for (size_t i = 0; i < e.size(); ++i) e[i] = static_cast<double>(to[i]) - static_cast<double>(from.values[i]);
  return e;
}

Direction one_element(const HostTensor& tensor, size_t element) {
  Direction e(tensor.values.size(), 0.0);
  e[element] = 1;
  return e;
}

const Plant kPlants[] = {
    {"an element",
     [](const HostTensor& t, PhiloxSequence& random) { return one_element(t, random.below(t.values.size())); }},
    {"the first element", [](const HostTensor& t, PhiloxSequence&) { return one_element(t, 0); }},
    {"the last element", [](const HostTensor& t, PhiloxSequence&) { return one_element(t, t.values.size() - 1); }},
    {"two elements, in opposite directions",
     [](const HostTensor& t, PhiloxSequence& random) {
       Direction e = one_element(t, random.below(t.values.size()));
       e[random.below(e.size())] -= 1.0 + 1e-3;
       return e;
     }},
    {"two elements of a row swapped",
     [](const HostTensor& t, PhiloxSequence& random) {
       std::vector<float> to = t.values;
       const size_t size = size_of_row(t), row = random.below(static_cast<uint64_t>(t.rows())) * size;
       std::swap(to[row + random.below(size)], to[row + random.below(size)]);
       return difference(t, to);
     }},
    {"a row shifted by one",
     [](const HostTensor& t, PhiloxSequence& random) {
       std::vector<float> to = t.values;
       const auto size = static_cast<std::ptrdiff_t>(size_of_row(t));
       const auto row = to.begin() + static_cast<std::ptrdiff_t>(random.below(static_cast<uint64_t>(t.rows()))) * size;
       std::rotate(row, row + 1, row + size);
       return difference(t, to);
     }},
    {"a row scaled",
     [](const HostTensor& t, PhiloxSequence& random) {
       Direction e(t.values.size(), 0.0);
       const size_t size = size_of_row(t), row = random.below(static_cast<uint64_t>(t.rows())) * size;
       for (size_t i = row; i < row + size; ++i) e[i] = static_cast<double>(t.values[i]);
       return e;
     }},
    {"two rows or experts swapped",
     [](const HostTensor& t, PhiloxSequence& random) {
       std::vector<float> to = t.values;
       const auto rows = static_cast<uint64_t>(t.rows());
       const uint64_t a = random.below(rows), b = random.below(rows);
       const auto size = static_cast<std::ptrdiff_t>(size_of_row(t));
       const auto row = [&](uint64_t i) { return to.begin() + static_cast<std::ptrdiff_t>(i) * size; };
       if (a != b) std::swap_ranges(row(a), row(a) + size, row(b));
       return difference(t, to);
     }},
    {"all rows shifted by one",
     [](const HostTensor& t, PhiloxSequence&) {
       std::vector<float> to = t.values;
       std::rotate(to.begin(), to.begin() + static_cast<std::ptrdiff_t>(t.rows() > 1 ? size_of_row(t) : 1), to.end());
       return difference(t, to);
     }},
    {"signs of a tenth",
     [](const HostTensor& t, PhiloxSequence& random) {
       Direction e(t.values.size(), 0.0);
       for (size_t i = 0; i < e.size(); ++i) {
         if (random.below(10) == 0) e[i] = -2.0 * static_cast<double>(t.values[i]);
       }
       return e;
     }},
    {"a wrong factor",
     [](const HostTensor& t, PhiloxSequence&) { return Direction(t.values.begin(), t.values.end()); }},
    {"a constant added", [](const HostTensor& t, PhiloxSequence&) { return Direction(t.values.size(), 1.0); }},
    {"noise", [](const HostTensor& t, PhiloxSequence& random) {
       Direction e(t.values.size());
       for (double& v : e) v = static_cast<double>(random.normal());
       return e;
     }}};

/// Adds an error of norm `size`; false if it has no effect on this tensor (two equal rows swapped).
bool plant(HostTensor& tensor, const Plant& kind, double size, PhiloxSequence& random) {
  const Direction e = kind.of(tensor, random);
  const double length = std::sqrt(std::inner_product(e.begin(), e.end(), e.begin(), 0.0));
  if (length == 0) return false;
  for (size_t i = 0; i < e.size(); ++i) {
    tensor.values[i] = static_cast<float>(static_cast<double>(tensor.values[i]) + e[i] * size / length);
  }
  return true;
}

struct Planted {
  int64_t count = 0;
  double least_seen = INFINITY;  ///< the smallest ratio of the sketch's estimate to the error's size
};

/// Plants every kind of error in every tensor, with a size of ten times `bound_of`. `check` returns the row of the
/// planted tensors.
Planted plant_everywhere(const HostTensors& ours, const std::function<double(const HostTensor&)>& bound_of,
                         const std::function<Check(const HostTensors&)>& check) {
  PhiloxSequence random(11);
  HostTensors tensors = ours;
  Planted planted;
  EXPECT_TRUE(check(tensors).ok());
  for (auto& [name, tensor] : tensors) {
    const ReferenceTensor reference = thinned(tensor);
    const HostTensor right = tensor;
    const double bound = bound_of(right);
    for (const Plant& kind : kPlants) {
      for (int i = 0; i < 3; ++i) {
        tensor = right;
        if (!plant(tensor, kind, 10 * bound, random)) continue;
        const double seen = distance(tensor, reference);
        EXPECT_GT(seen, bound) << name << ": " << kind.name;
        planted.least_seen = std::min(planted.least_seen, seen / distance(tensor, right));
        ++planted.count;
      }
    }
    EXPECT_FALSE(check(tensors).ok()) << name;
    tensor = right;
  }
  return planted;
}

double norm_of_all(const HostTensors& tensors) {
  double sum = 0;
  for (const auto& [name, tensor] : tensors) sum += norm(tensor) * norm(tensor);
  return std::sqrt(sum);
}

class ThinnedCase : public ::testing::TestWithParam<std::string> {};

// A sketch's estimate for two opposite errors that share a bucket of one hash function is √(3 / 4) of their norm; for
// many errors the ratio is 1 with a standard deviation of at most 4 %.
constexpr double kLeastSeen = 0.8;

TEST_P(ThinnedCase, RejectsAnErrorAnywhereInOurGradients) {
  const HostTensors ours = compute(GetParam()).gradients.at("grads");
  const ReferenceTensors reference = thinned_all(ours);
  const double smallest = 1e-4 * norm_of_all(ours);
  const Planted planted = plant_everywhere(
      ours, [&](const HostTensor& tensor) { return kGradient * std::max(norm(tensor), smallest); },
      [&](const HostTensors& tensors) { return compare_gradients("", tensors, reference, "", kGradient)[0]; });
  EXPECT_GT(planted.count, 500);
  EXPECT_GT(planted.least_seen, kLeastSeen);
}

TEST_P(ThinnedCase, RejectsAnErrorAnywhereInWhatWeTrained) {
  const HostTensors ours = compute(GetParam()).change();
  const ReferenceTensors reference = thinned_all(ours);
  double elements = 0;
  for (const auto& [name, tensor] : ours) elements += static_cast<double>(tensor.values.size());
  const double all = norm_of_all(ours);
  const Planted planted = plant_everywhere(
      ours,
      [&](const HostTensor& tensor) {
        const double share = all * std::sqrt(static_cast<double>(tensor.values.size()) / elements);
        return kChange * std::max(norm(tensor), share);
      },
      [&](const HostTensors& tensors) { return compare_updates("", tensors, reference, "", kChange)[1]; });
  EXPECT_GT(planted.count, 500);
  EXPECT_GT(planted.least_seen, kLeastSeen);
}

/// Changes values, norms of rows and buckets, one at a time.
TEST_P(ThinnedCase, RejectsAWrongNumberInEachTensorOfItsFiles) {
  const HostTensors ours = compute(GetParam()).gradients.at("grads");
  ReferenceTensors reference = read_reference_tensors(kGoldens / GetParam() / "grads.safetensors");
  const double smallest = 1e-4 * norm_of_all(ours);
  PhiloxSequence random(12);
  size_t sketches = 0;
  for (auto& [name, tensor] : reference) {
    std::vector<std::vector<float>*> parts;
    if (auto* sketched = std::get_if<TensorSketch>(&tensor)) {
      parts = {&sketched->row_norms, &sketched->sums};
      ++sketches;
    } else {
      parts = {&std::get<HostTensor>(tensor).values};
    }
    const double bound = kGradient * std::max(norm(ours.at(name)), smallest);
    for (std::vector<float>* part : parts) {
      for (int i = 0; i < 5; ++i) {
        float& number = (*part)[random.below(part->size())];
        const float right = number;
        number = static_cast<float>(static_cast<double>(number) + 10 * bound);
        EXPECT_GT(distance(ours.at(name), tensor), bound) << name;
        number = right;
      }
    }
  }
  EXPECT_GE(sketches, 8u);
}

TEST_P(ThinnedCase, RejectsAnyNumberInARowThatIsZero) {
  HostTensors ours = compute(GetParam()).gradients.at("grads");
  const ReferenceTensors reference = read_reference_tensors(kGoldens / GetParam() / "grads.safetensors");
  int64_t rows = 0;
  for (auto& [name, tensor] : ours) {
    const auto* sketched = std::get_if<TensorSketch>(&reference.at(name));
    if (sketched == nullptr) continue;
    for (size_t row = 0; row < sketched->row_norms.size(); ++row) {
      if (sketched->row_norms[row] != 0) continue;
      float& number = tensor.values[row * size_of_row(tensor) + row % size_of_row(tensor)];
      ASSERT_EQ(number, 0.0f);
      number = -1e-42f;
      EXPECT_EQ(nonzero_rows(tensor, reference.at(name)), 1) << name;
      number = 0;
      ++rows;
    }
  }
  EXPECT_GT(rows, 0);
}

// Experts, sinks and biases; linear attention with convolutions and scalars; latent attention; another router.
INSTANTIATE_TEST_SUITE_P(Cases, ThinnedCase,
                         ::testing::Values("qwen3_moe", "gpt_oss", "qwen3_next", "deepseek_v3", "granitemoe"),
                         [](const auto& test) { return test.param; });

// -- Making a thinned case

/// A full case: a thinned case with computed tensors in place of sketches.
class FullCase : public ::testing::Test {
 protected:
  FullCase() : ours_(compute("qwen3_moe")) {
    fs::remove_all(folder_);
    fs::create_directories(folder_);
    fs::copy(kGoldens / "qwen3_moe", full(), fs::copy_options::recursive);
    fs::remove(full() / "full_change.safetensors");
    write();
  }
  ~FullCase() override { fs::remove_all(folder_); }

  void write() const {
    for (const auto& [file, gradients] : ours_.gradients) {
      write_reference_tensors(full() / (file + ".safetensors"), {gradients.begin(), gradients.end()});
    }
    write_reference_tensors(full() / "full_final.safetensors", {ours_.final.begin(), ours_.final.end()});
  }
  fs::path full() const { return folder_ / "full"; }
  fs::path thin() const { return folder_ / "thin"; }
  static VerifyReport verify(const fs::path& directory) {
    VerifyOptions options;
    options.case_directory = directory;
    options.threads = 1;
    return verify_case(options);
  }
  static std::vector<std::string> failed_rows(const VerifyReport& report) {
    std::vector<std::string> names;
    for (const Check& check : report.checks) {
      if (!check.ok()) names.push_back(check.name);
    }
    return names;
  }

  Ours ours_;

 private:
  fs::path folder_ = fs::path(::testing::TempDir()) /
                     (std::string("hone_") + ::testing::UnitTest::GetInstance()->current_test_info()->name());
};

std::string bytes_of(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST_F(FullCase, IsThinnedToTheSameBytesAndTheSameRows) {
  thin_case(full(), thin());
  const VerifyReport report = verify(thin()), of_full = verify(full());
  EXPECT_TRUE(report.ok()) << report_table(report);
  EXPECT_TRUE(of_full.ok()) << report_table(of_full);
  EXPECT_EQ(report.checks.size(), of_full.checks.size());
  std::map<std::string, std::string> first;
  for (const auto& entry : fs::directory_iterator(thin())) {
    if (entry.is_regular_file()) first[entry.path().filename()] = bytes_of(entry.path());
  }
  fs::remove_all(thin());
  thin_case(full(), thin());
  for (const auto& [file, bytes] : first) EXPECT_TRUE(bytes == bytes_of(thin() / file)) << file;
  for (const char* file : kGradientFiles) {
    const std::string name = std::string(file) + ".safetensors";
    EXPECT_LT(4 * fs::file_size(thin() / name), fs::file_size(full() / name));
  }
}

TEST_F(FullCase, AndItsThinnedOneAreHeldAlike) {
  ours_.gradients.at("grads").at("lm_head.weight").values[7] *= 1.5f;
  ours_.gradients.at("packed_grads").at("model.layers.1.mlp.experts.down_proj").values[3000] += 1e-3f;
  for (float& value : ours_.gradients.at("accumulation_grads").at("model.layers.0.self_attn.q_proj.weight").values) {
    value *= 1.001f;
  }
  std::vector<float>& experts = ours_.final.at("model.layers.0.mlp.experts.gate_up_proj").values;
  std::swap_ranges(experts.begin(), experts.begin() + 48 * 64, experts.begin() + 48 * 64);
  write();
  thin_case(full(), thin());
  const std::vector<std::string> failed = failed_rows(verify(full()));
  EXPECT_THAT(failed, ::testing::ElementsAre("gradients", "documents packed, gradients", "accumulation, gradients",
                                             "full, change of weights", "full, change of weights, tensors"));
  EXPECT_EQ(failed, failed_rows(verify(thin())));
}

TEST_F(FullCase, IsNotThinnedTwiceOrOverAnother) {
  thin_case(full(), thin());
  EXPECT_THROW(thin_case(full(), thin()), UserError);
  EXPECT_THROW(thin_case(thin(), full() / "again"), UserError);
  EXPECT_THROW(thin_case(full() / "model", full() / "again"), UserError);
}

TEST(TensorSketch, OfAnotherShapeOrWithoutItsOtherHalfIsTheUsersMistake) {
  const auto complaint = [](const auto& f) -> std::string {
    try {
      f();
    } catch (const UserError& error) {
      return error.what();
    }
    return "no error";
  };
  const HostTensor tensor{{64, 64}, std::vector<float>(4096, 1.0f)}, other{{32, 64}, std::vector<float>(2048, 1.0f)};
  EXPECT_THAT(complaint([&] {
                compare_gradients("", {{"w", other}}, {{"w", sketch(tensor)}}, "file", 1);
              }),
              ::testing::HasSubstr("'w' has the shape a sketch of 64 rows in 64 buckets in the case and [32, 64]"));
  const fs::path file = fs::path(::testing::TempDir()) / "hone_half_sketch.safetensors";
  write_reference_tensors(file, {{"w.sketch", HostTensor{{4, 64}, std::vector<float>(256, 1.0f)}}});
  EXPECT_THAT(complaint([&] { read_reference_tensors(file); }), ::testing::HasSubstr("'w.row_norms'"));
  fs::remove(file);
}

}  // namespace
}  // namespace hone
