// Dense products by cuBLASLt: cached plans by shape, a workspace of fixed size, and a fixed rule for the algorithm
// instead of a measurement.
//
// One H200, 2026-11-21, `hone bench ops`, 16,384 tokens, of 810 TFLOP/s in a square product: 2048 to 4096 783 (97 %),
// both gradients 757, the gradient of the input alone 712; 2048 to 512 562. Raw: bench/results/h200-ops.json.
#include "kernels/cuda/matmul/matmul_cuda.h"

#include <algorithm>
#include <array>
#include <map>

#include "core/cuda/cublaslt_library.h"
#include "core/stream/cuda_launch.h"
#include "kernels/cuda/tiers.h"

namespace hone::cuda {

namespace {

constexpr int64_t kUnitBytes = 16;

void check_blas(cublasStatus_t status, const char* doing) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  throw Error(ExitCode::kDeviceFailed,
              std::string("cuBLAS failed while ") + doing + ": " + cublaslt_library().status_string(status), "",
              "a run with checkpoints resumes with `hone train --resume`");
}

cudaDataType_t type_of(DType dtype) { return dtype == DType::kBF16 ? CUDA_R_16BF : CUDA_R_32F; }
cudaDataType_t type_of(Fp8Code code) { return code == Fp8Code::kE4m3 ? CUDA_R_8F_E4M3 : CUDA_R_8F_E5M2; }

/// The alignment that a plan may assume; cuBLAS does not benefit from more than 16 bytes.
int64_t alignment_of(const void* pointer) {
  const auto address = reinterpret_cast<uintptr_t>(pointer);
  return static_cast<int64_t>(std::min<uintptr_t>(address & (~address + 1), kUnitBytes));
}

/// A matrix as read by cuBLAS.
struct Operand {
  const void* data = nullptr;
  int64_t rows = 0, columns = 0, pitch = 0;
  bool transposed = false;
};

/// One product in cuBLAS's column-major order: C^T [n, m] = op(B)^T op(A)^T.
struct Product {
  int64_t m = 0, n = 0, k = 0;
  Operand a, b;
  void* c = nullptr;
  const void* d = nullptr;
  int64_t c_pitch = 0;
  DType operands = DType::kF32, c_dtype = DType::kF32;
  const void* bias = nullptr;
  /// Operands of 8-bit floats, in place of `operands`, and their scales.
  Fp8Recipe fp8 = Fp8Recipe::kOff;
  Fp8Code a_code = Fp8Code::kE4m3;
  bool fast = false, b_of_rows = false;
  const void *a_scales = nullptr, *b_scales = nullptr;

  cudaDataType_t type_of_a() const { return fp8 != Fp8Recipe::kOff ? type_of(a_code) : type_of(operands); }
  cudaDataType_t type_of_b() const { return fp8 != Fp8Recipe::kOff ? type_of(Fp8Code::kE4m3) : type_of(operands); }

  /// The smaller one of c's and d's, since a plan has one layout for both.
  int64_t c_alignment() const { return std::min(alignment_of(c), alignment_of(d)); }

  using Key = std::array<int64_t, 12>;
  Key key() const {
    const int64_t flags = (a.transposed ? 1 : 0) | (b.transposed ? 2 : 0) | (operands == DType::kBF16 ? 4 : 0) |
                          (c_dtype == DType::kBF16 ? 8 : 0) | (bias != nullptr ? 16 : 0) | (fast ? 32 : 0) |
                          (a_code == Fp8Code::kE5m2 ? 64 : 0) | (b_of_rows ? 128 : 0) | static_cast<int64_t>(fp8) << 8;
    return {m,
            n,
            k,
            a.pitch,
            b.pitch,
            c_pitch,
            flags,
            alignment_of(a.data),
            alignment_of(b.data),
            c_alignment(),
            bias != nullptr ? alignment_of(bias) : 0};
  }
};

/// The arguments of a cuBLAS call except pointers, as plain values.
struct Plan {
  cublasLtMatmulDescOpaque_t product;
  cublasLtMatrixLayoutOpaque_t a, b, c;
  cublasLtMatmulAlgo_t algorithm;
};

void describe(cublasLtMatrixLayoutOpaque_t& layout, cudaDataType_t type, int64_t rows, int64_t columns, int64_t pitch) {
  check_blas(cublaslt_library().layout_init(&layout, sizeof layout, type, static_cast<uint64_t>(columns),
                                            static_cast<uint64_t>(rows), pitch),
             "describing a matrix");
}

template <class T>
void set(cublasLtMatmulDescOpaque_t& product, cublasLtMatmulDescAttributes_t attribute, T value) {
  check_blas(cublaslt_library().product_set(&product, attribute, &value, sizeof value), "describing a product");
}

/// How operands of 8-bit floats are scaled. cuBLAS's A is b.
void describe_scales(cublasLtMatmulDescOpaque_t& product, const Product& p) {
  int32_t of_a = CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F, of_b = of_a;
  if (p.fp8 == Fp8Recipe::kRowwise) of_a = of_b = CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F;
  if (p.fp8 == Fp8Recipe::kBlockwise) {
    of_a = CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F;
    of_b = p.b_of_rows ? of_a : CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F;
  }
  set(product, CUBLASLT_MATMUL_DESC_A_SCALE_MODE, of_b);
  set(product, CUBLASLT_MATMUL_DESC_B_SCALE_MODE, of_a);
  set(product, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, p.b_scales);
  set(product, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, p.a_scales);
  set<int8_t>(product, CUBLASLT_MATMUL_DESC_FAST_ACCUM, p.fast ? 1 : 0);
}

template <class T>
void prefer(cublasLtMatmulPreferenceOpaque_t& preference, cublasLtMatmulPreferenceAttributes_t attribute, T value) {
  check_blas(cublaslt_library().preference_set(&preference, attribute, &value, sizeof value), "choosing an algorithm");
}

template <class T>
T attribute_of(const cublasLtMatmulAlgo_t& algorithm, cublasLtMatmulAlgoConfigAttributes_t attribute) {
  T value = {};
  size_t written = 0;
  check_blas(cublaslt_library().algorithm_attribute(&algorithm, attribute, &value, sizeof value, &written),
             "choosing an algorithm");
  return value;
}

/// Chooses one of the algorithms that cuBLAS offers, best first. On an H200 at its power limit, large bfloat16 products
/// with tiles of 128 x 160 (clusters of 2 x 1), or else 176 x 128 (1 x 2), take up to 10 % less time than the first
/// one, and at worst 1 % more. A rule instead of a measurement at run time keeps products bitwise reproducible.
int choose(const Product& p, Tier tier, const cublasLtMatmulHeuristicResult_t* results, int count) {
  struct Choice {
    uint32_t tile;
    uint16_t cluster;
  };
  constexpr Choice kChoices[] = {{CUBLASLT_MATMUL_TILE_128x160, CUBLASLT_CLUSTER_SHAPE_2x1x1},
                                 {CUBLASLT_MATMUL_TILE_176x128, CUBLASLT_CLUSTER_SHAPE_1x2x1}};
  constexpr double kLarge = 64e9;  // multiplications; tiles of smaller products do not fill a GPU many times
  const double size = static_cast<double>(p.m) * static_cast<double>(p.n) * static_cast<double>(p.k);
  if (tier != Tier::kSm90 || p.fp8 != Fp8Recipe::kOff || p.operands != DType::kBF16 || size < kLarge) return 0;
  const auto splits = [&](int i) { return attribute_of<int32_t>(results[i].algo, CUBLASLT_ALGO_CONFIG_SPLITK_NUM); };
  for (const Choice& choice : kChoices) {
    for (int i = 0; i < count; ++i) {
      const auto& algorithm = results[i].algo;
      if (attribute_of<uint32_t>(algorithm, CUBLASLT_ALGO_CONFIG_TILE_ID) == choice.tile &&
          attribute_of<uint16_t>(algorithm, CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID) == choice.cluster &&
          splits(i) == splits(0)) {
        return i;
      }
    }
  }
  return 0;
}

/// Cached plans by product.
class Plans {
 public:
  const Plan& find(CudaQueue& queue, const Product& product) {
    const Product::Key key = product.key();
    const auto found = plans_.find(key);
    if (found != plans_.end()) return found->second;
    // Token counts differ from step to step, so the cache is bounded; recreating a plan gives the same plan.
    if (plans_.size() >= kMostPlans) plans_.clear();
    return plans_.emplace(key, make(queue, product)).first->second;
  }

 private:
  static constexpr size_t kMostPlans = 4096;

  static Plan make(CudaQueue& queue, const Product& p) {
    const CudaLibraries& libraries = queue.libraries();
    Plan plan;
    check_blas(cublaslt_library().product_init(&plan.product, sizeof plan.product, CUBLAS_COMPUTE_32F, CUDA_R_32F),
               "describing a product");
    set<int32_t>(plan.product, CUBLASLT_MATMUL_DESC_TRANSA, p.b.transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
    set<int32_t>(plan.product, CUBLASLT_MATMUL_DESC_TRANSB, p.a.transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
    if (p.bias != nullptr) {
      set<uint32_t>(plan.product, CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
      set<int32_t>(plan.product, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, type_of(p.c_dtype));
      set(plan.product, CUBLASLT_MATMUL_DESC_BIAS_POINTER, p.bias);
    }
    if (p.fp8 != Fp8Recipe::kOff) describe_scales(plan.product, p);
    describe(plan.a, p.type_of_b(), p.b.rows, p.b.columns, p.b.pitch);
    describe(plan.b, p.type_of_a(), p.a.rows, p.a.columns, p.a.pitch);
    describe(plan.c, type_of(p.c_dtype), p.m, p.n, p.c_pitch);
    cublasLtMatmulPreferenceOpaque_t preference;
    check_blas(cublaslt_library().preference_init(&preference, sizeof preference), "choosing an algorithm");
    prefer<uint64_t>(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, libraries.workspace_bytes);
    // With split k, partial sums stay float32 in the workspace and are added in order.
    prefer<uint32_t>(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE);
    prefer(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, static_cast<uint32_t>(alignment_of(p.b.data)));
    prefer(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, static_cast<uint32_t>(alignment_of(p.a.data)));
    prefer(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, static_cast<uint32_t>(p.c_alignment()));
    prefer(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, static_cast<uint32_t>(p.c_alignment()));
    constexpr int kMostResults = 8;
    cublasLtMatmulHeuristicResult_t results[kMostResults] = {};
    int count = 0;
    check_blas(cublaslt_library().heuristic(static_cast<cublasLtHandle_t>(libraries.cublaslt), &plan.product, &plan.a,
                                            &plan.b, &plan.c, &plan.c, &preference, kMostResults, results, &count),
               "choosing an algorithm");
    HONE_ASSERT(count > 0, "cuBLAS has no algorithm for a product");
    plan.algorithm = results[choose(p, device_tiers(queue).matmul_choice, results, count)].algo;
    return plan;
  }

  std::map<Product::Key, Plan> plans_;
};

/// One thread per kWidth columns.
template <int kWidth, class From, class To>
__global__ void copy_matrix_kernel(const From* from, int64_t from_pitch, To* to, int64_t to_pitch, int64_t rows,
                                   int64_t columns) {
  const int64_t groups = (columns + kWidth - 1) / kWidth;
  const int64_t index = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (index >= rows * groups) return;
  const int64_t row = index / groups, column = (index - row * groups) * kWidth;
  struct alignas(kWidth * sizeof(From)) Source {
    From values[kWidth];
  };
  struct alignas(kWidth * sizeof(To)) Destination {
    To values[kWidth];
  };
  const auto source = *reinterpret_cast<const Source*>(from + row * from_pitch + column);
  Destination destination;
#pragma unroll
  for (int i = 0; i < kWidth; ++i) destination.values[i] = from_float<To>(to_float(source.values[i]));
  *reinterpret_cast<Destination*>(to + row * to_pitch + column) = destination;
}

/// The matrix in place or, if its dtype differs or its rows are not aligned, a copy: cuBLAS is only fast for rows of
/// whole 16-byte units.
Operand operand(const Context& context, ArenaScope& scratch, const Tensor& tensor, int64_t pitch, bool transposed,
                DType dtype) {
  HONE_ASSERT(tensor.shape.rank() == 2);
  Operand result{tensor.data, tensor.shape[0], tensor.shape[1], pitch != 0 ? pitch : tensor.shape[1], transposed};
  const int64_t aligned = aligned_pitch(result.columns, dtype);
  if (tensor.dtype == dtype && result.pitch == aligned_pitch(result.pitch, dtype)) return result;
  const Tensor copy = scratch.take({result.rows, aligned}, dtype);
  Tensor columns = copy;
  columns.shape = tensor.shape;
  copy_matrix(context, tensor, result.pitch, columns, aligned);
  result.data = copy.data;
  result.pitch = aligned;
  return result;
}

/// c = beta · c, for a product of no terms.
void scale_only(const Context& context, const MatmulArgs& args, int64_t pitch) {
  HONE_ASSERT(args.beta == 0.0f || args.beta == 1.0f);
  HONE_ASSERT(!args.bias.defined() && !args.d.defined());
  if (context.dry() || args.beta == 1.0f) return;
  const size_t element = size_of(args.c.dtype);
  check(cudaMemset2DAsync(args.c.data, static_cast<size_t>(pitch) * element, 0,
                          static_cast<size_t>(args.c.shape[1]) * element, static_cast<size_t>(args.c.shape[0]),
                          stream_of(context)),
        "clearing an empty product");
}

void multiply(const Context& context, const Product& product, float alpha, float beta) {
  CudaQueue& queue = queue_of(context);
  const CudaLibraries& libraries = queue.libraries();
  Plan plan = queue.state<Plans>().find(queue, product);
  if (product.bias != nullptr) set(plan.product, CUBLASLT_MATMUL_DESC_BIAS_POINTER, product.bias);
  if (product.fp8 != Fp8Recipe::kOff) describe_scales(plan.product, product);
  check_blas(cublaslt_library().multiply(static_cast<cublasLtHandle_t>(libraries.cublaslt), &plan.product, &alpha,
                                         product.b.data, &plan.a, product.a.data, &plan.b, &beta, product.d, &plan.c,
                                         product.c, &plan.c, &plan.algorithm, libraries.workspace,
                                         libraries.workspace_bytes, stream_of(context)),
             "multiplying matrices");
}

}  // namespace

void copy_matrix(const Context& context, const Tensor& from, int64_t from_pitch, const Tensor& to, int64_t to_pitch) {
  HONE_ASSERT(from.shape == to.shape);
  int64_t columns = from.shape[-1], rows = columns == 0 ? 0 : from.numel() / columns;
  if (context.dry() || rows == 0) return;
  if (from_pitch == columns && to_pitch == columns) columns *= rows, rows = 1;
  cuda::dispatch_float(from.dtype, [&](auto from_element) {
    cuda::dispatch_float(to.dtype, [&](auto to_element) {
      using From = decltype(from_element);
      using To = decltype(to_element);
      constexpr int kWidth = 8;
      const auto whole = [](int64_t pitch, size_t size, const void* pointer) {
        return pitch % kWidth == 0 && reinterpret_cast<uintptr_t>(pointer) % (kWidth * size) == 0;
      };
      const bool vectors = columns % kWidth == 0 &&
                           (rows == 1 || (from_pitch % kWidth == 0 && to_pitch % kWidth == 0)) &&
                           whole(kWidth, sizeof(From), from.data) && whole(kWidth, sizeof(To), to.data);
      constexpr int kThreads = 256;
      const auto kernel = vectors ? copy_matrix_kernel<kWidth, From, To> : copy_matrix_kernel<1, From, To>;
      const int64_t threads = vectors ? rows * columns / kWidth : rows * columns;
      kernel<<<blocks_for(threads, kThreads), kThreads, 0, stream_of(context)>>>(
          elements<From>(from), from_pitch, elements<To>(to), to_pitch, rows, columns);
      check_launch("converting a matrix");
    });
  });
}

void matmul(const Context& context, const MatmulArgs& args) {
  HONE_ASSERT(args.a.shape.rank() == 2 && args.b.shape.rank() == 2 && args.c.shape.rank() == 2);
  Product product{.m = args.c.shape[0], .n = args.c.shape[1], .k = args.a.shape[args.a_transposed ? 0 : 1]};
  HONE_ASSERT(args.a.shape[args.a_transposed ? 1 : 0] == product.m &&
              args.b.shape[args.b_transposed ? 0 : 1] == product.n);
  HONE_ASSERT(args.b.shape[args.b_transposed ? 1 : 0] == product.k);
  HONE_ASSERT(args.c.dtype == DType::kF32 || args.operands == DType::kBF16);
  product.c_pitch = args.c_pitch != 0 ? args.c_pitch : product.n;
  if (product.m == 0 || product.n == 0) return;
  if (product.k == 0) return scale_only(context, args, product.c_pitch);

  ArenaScope scratch(context.scratch());
  product.a = operand(context, scratch, args.a, args.a_pitch, args.a_transposed, args.operands);
  product.b = operand(context, scratch, args.b, args.b_pitch, args.b_transposed, args.operands);
  product.operands = args.operands;
  HONE_ASSERT(!args.d.defined() || (args.d.shape == args.c.shape && args.d.dtype == args.c.dtype));
  product.c = args.c.data;
  product.d = args.d.defined() ? args.d.data : args.c.data;
  product.c_dtype = args.c.dtype;
  Tensor bias = args.bias;
  if (bias.defined() && bias.dtype != args.c.dtype) {
    bias = scratch.take(bias.shape, args.c.dtype);
    copy_matrix(context, args.bias, product.n, bias, product.n);
  }
  product.bias = bias.data;
  if (context.dry()) return;
  context.note_kernel("dense products", "cuBLASLt");

  multiply(context, product, args.alpha, args.beta);
}

void fp8_matmul(const Context& context, const Fp8MatmulArgs& args) {
  const int64_t m = args.c.shape[0], n = args.c.shape[1], k = args.a.shape[1];
  HONE_ASSERT(args.a.shape == Shape({m, k}) && args.b.shape == Shape({n, k}));
  HONE_ASSERT(n % kFp8Unit == 0 && k % kFp8Unit == 0 && k > 0);
  HONE_ASSERT(!args.d.defined() || (args.d.shape == args.c.shape && args.d.dtype == args.c.dtype));
  HONE_ASSERT(!args.bias.defined() || args.bias.dtype == args.c.dtype);
  if (context.dry() || m == 0 || n == 0) return;
  context.note_kernel("dense products in FP8", "cuBLASLt");
  multiply(context,
           {.m = m,
            .n = n,
            .k = k,
            .a = {args.a.data, m, k, k, false},
            .b = {args.b.data, n, k, k, true},
            .c = args.c.data,
            .d = args.d.defined() ? args.d.data : args.c.data,
            .c_pitch = n,
            .c_dtype = args.c.dtype,
            .bias = args.bias.data,
            .fp8 = args.recipe,
            .a_code = args.a_code,
            .fast = args.fast,
            .b_of_rows = args.b_of_rows,
            .a_scales = args.a_scales.data,
            .b_scales = args.b_scales.data},
           1.0f, args.beta);
}

}  // namespace hone::cuda
