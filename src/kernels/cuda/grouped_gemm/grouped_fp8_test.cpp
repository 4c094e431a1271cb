// Products of groups in 8-bit floats beside products of the numbers that their codes stand for.
#include <cstring>
#include <memory>
#include <tuple>

#include "kernels/cuda/grouped_gemm/grouped_testing.h"

#if HONE_CUDA
namespace hone::testing {
namespace {

/// A stack of matrices of e4m3 codes in device memory. 16 bytes follow each matrix, of which the first 4 are its scale.
class Fp8Matrices {
 public:
  Fp8Matrices(int64_t matrices, int64_t rows, int64_t columns, uint64_t key)
      : rows_(rows), columns_(columns), bytes_(static_cast<size_t>(matrices * pitch())) {
    PhiloxSequence random(key);
    for (int64_t m = 0; m < matrices; ++m) {
      scales_.push_back(0.01f * static_cast<float>(1 + m % 5));
      uint8_t* chunk = bytes_.data() + m * pitch();
      for (int64_t i = 0; i < rows * columns; ++i) chunk[i] = e4m3_code(2.0f * random.normal());
      std::memcpy(chunk + rows * columns, &scales_.back(), sizeof(float));
    }
    device_ = std::make_unique<TestTensor<uint8_t>>(bytes_, Shape{static_cast<int64_t>(bytes_.size())});
  }

  double at(int64_t matrix, int64_t row, int64_t column) const {
    const uint8_t code = bytes_[static_cast<size_t>(matrix * pitch() + row * columns_ + column)];
    return static_cast<double>(e4m3_value(code)) * scale(matrix);
  }
  double scale(int64_t matrix) const { return static_cast<double>(scales_[static_cast<size_t>(matrix)]); }
  /// As weights of groups of `matrices` each.
  cuda::Fp8Stack stack(int64_t matrices) const {
    const Tensor& codes = device_->tensor();
    return {.codes = codes,
            .rows = rows_,
            .columns = columns_,
            .matrices = matrices,
            .matrix_bytes = pitch(),
            .scales = reinterpret_cast<const float*>(codes.data + rows_ * columns_),
            .scale_pitch = pitch() / 4};
  }

 private:
  int64_t pitch() const { return rows_ * columns_ + 16; }

  int64_t rows_, columns_;
  std::vector<uint8_t> bytes_;
  std::vector<float> scales_;
  std::unique_ptr<TestTensor<uint8_t>> device_;
};

/// Rows of codes with a scale each.
struct Fp8Rows {
  int64_t k;
  std::vector<uint8_t> codes;
  std::vector<float> scales;
  std::unique_ptr<TestTensor<uint8_t>> codes_tensor;
  std::unique_ptr<TestTensor<float>> scales_tensor;

  Fp8Rows(int64_t rows, int64_t width, uint64_t key) : k(width) {
    PhiloxSequence random(key);
    for (int64_t i = 0; i < rows * k; ++i) codes.push_back(e4m3_code(2.0f * random.normal()));
    for (int64_t row = 0; row < rows; ++row) scales.push_back(0.5f + 0.25f * static_cast<float>(row % 3));
    codes_tensor = std::make_unique<TestTensor<uint8_t>>(codes, Shape{rows, k});
    scales_tensor = std::make_unique<TestTensor<float>>(scales, Shape{rows});
  }
  double at(int64_t row, int64_t column) const {
    return static_cast<double>(e4m3_value(codes[static_cast<size_t>(row * k + column)])) *
           static_cast<double>(scales[static_cast<size_t>(row)]);
  }
};

class GroupedFp8 : public ::testing::Test {
 protected:
  void SetUp() override {
    if (test_device().kind != DeviceKind::kCuda || !cuda::takes_fp8_groups(run_.context, 128, 128, 1)) {
      GTEST_SKIP() << "no products of 8-bit floats on this device";
    }
  }

  /// Beside `want`, relative to its norm: bfloat16 is rounded by 2^-9, and tensor cores keep some 14 bits of a sum.
  static void expect_near(const Tensor& got, const Values& want, const char* what) {
    double difference = 0, norm = 0;
    size_t i = 0;
    for (const BFloat16 value : host_values<BFloat16>(got)) {
      const double d = static_cast<double>(static_cast<float>(value)) - want[i];
      difference += d * d;
      norm += want[i] * want[i];
      ++i;
    }
    EXPECT_LE(std::sqrt(difference), 6e-3 * std::sqrt(norm)) << what;
  }

  GroupedRun run_;
};

TEST_F(GroupedFp8, GatesAndUpsOfGatheredRows) {
  for (const auto& [groups, width, k] : {std::tuple<std::vector<int64_t>, int64_t, int64_t>{kUneven, 128, 256},
                                         {kTiny, 384, 128},
                                         {{700, 300}, 256, 640}}) {
    const GroupedRows rows(groups);
    const Fp8Rows x(rows.tokens, k, 1);
    const Fp8Matrices w(2 * static_cast<int64_t>(groups.size()), width, k, 2);
    const GroupedMatrix c = GroupedMatrix::unwritten({rows.count, 2 * width}, DType::kBF16);
    const GroupedMatrix activation = GroupedMatrix::unwritten({rows.count, width}, DType::kBF16);
    run_.run(&cuda::grouped_gemm, {.groups = rows.groups(),
                                   .a = *x.codes_tensor,
                                   .a_rows = rows.token_tensor,
                                   .w = {},
                                   .c = c,
                                   .activation = activation,
                                   .fp8 = w.stack(2),
                                   .a_scales = *x.scales_tensor});
    Values want, activated;
    for (int64_t r = 0; r < rows.count; ++r) {
      const int64_t group = rows.group[static_cast<size_t>(r)], token = rows.token[static_cast<size_t>(r)];
      for (int64_t n = 0; n < 2 * width; ++n) {
        double sum = 0;
        for (int64_t i = 0; i < k; ++i) sum += x.at(token, i) * w.at(2 * group + n / width, n % width, i);
        want.push_back(sum);
      }
      for (int64_t n = 0; n < width; ++n) {
        const double gate = want[static_cast<size_t>(r * 2 * width + n)];
        activated.push_back(gate / (1 + std::exp(-gate)) * want[static_cast<size_t>(r * 2 * width + width + n)]);
      }
    }
    expect_near(c, want, "gate and up");
    expect_near(activation, activated, "activation");
  }
}

TEST_F(GroupedFp8, SumsWithScalesAndWithout) {
  for (const auto& [groups, n, k] : {std::tuple<std::vector<int64_t>, int64_t, int64_t>{kUneven, 256, 256},
                                     {kTiny, 128, 512},
                                     {{700, 300}, 640, 256}}) {
    for (const bool scaled : {true, false}) {
      const GroupedRows rows(groups);
      const Fp8Rows a(rows.count, k, 3);
      const Fp8Matrices w(static_cast<int64_t>(groups.size()), n, k, 4);
      cuda::Fp8Stack stack = w.stack(1);
      if (!scaled) stack.scales = nullptr;
      const GroupedMatrix c = GroupedMatrix::unwritten({rows.count, n}, DType::kBF16);
      run_.run(
          &cuda::grouped_gemm,
          {.groups = rows.groups(), .a = *a.codes_tensor, .w = {}, .c = c, .fp8 = stack, .a_scales = *a.scales_tensor});
      Values want;
      for (int64_t r = 0; r < rows.count; ++r) {
        const int64_t group = rows.group[static_cast<size_t>(r)];
        for (int64_t column = 0; column < n; ++column) {
          double sum = 0;
          for (int64_t i = 0; i < k; ++i) sum += a.at(r, i) * w.at(group, column, i);
          want.push_back(scaled ? sum : sum / w.scale(group));
        }
      }
      expect_near(c, want, scaled ? "scaled" : "without scales");
    }
  }
}

}  // namespace
}  // namespace hone::testing
#endif  // HONE_CUDA
