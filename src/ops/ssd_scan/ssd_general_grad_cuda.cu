// The gradients of the state-space scan for any GPU, dtype and size, in products as exact as float32's: states and
// their gradients as in forward, then all chunks at once, a CTA for each chunk and block of heads. Gradients of B and C
// are summed over the blocks of a group afterwards; every sum has one owner and one order.
#include "ops/ssd_scan/ssd_general_cuda.h"

namespace hone::cuda {

namespace {

/// Row stride of the partial sums of a product's rows, one for each of at most 32 threads.
constexpr int kPartials = 33;

/// Destinations of gradients.
template <class T>
struct SsdGradients {
  const T* dout;
  T *dxbc, *ddt;  // null: not wanted
  bool add_xbc, add_dt;
  float* keys;                    // [blocks of a group, T, 2GN], those of B and C
  float *a_log, *dt_bias, *d;     // [items, H] or null
  const float *states, *dstates;  // SsdGeneralScratch
};

/// Bytes of a CTA's dynamic shared memory: `pairs` holds P and its gradient [rows, rows], or a state [N, P].
struct SharedLayout {
  int pairs, partials, keys, values;

  template <class T>
  __host__ __device__ static SharedLayout of(int size, int dim) {
    constexpr int kRows = kSsdRows<T>;
    const int scores = 2 * kRows * (kRows + 1), state = size * ssd_pitch<float>(dim);
    return {.pairs = (scores > state ? scores : state) * static_cast<int>(sizeof(float)),
            .partials = kRows * kPartials * static_cast<int>(sizeof(float)),
            .keys = kRows * ssd_pitch<T>(size) * static_cast<int>(sizeof(T)),
            .values = kRows * ssd_pitch<T>(dim) * static_cast<int>(sizeof(T))};
  }
  __host__ __device__ int total() const { return pairs + partials + 2 * keys + 2 * values; }
};

template <class T>
class Backward {
 public:
  static constexpr int kRows = kSsdRows<T>, kPitch = kRows + 1;

  /// Scalars of the tokens of a chunk and head.
  struct Scalars {
    SsdTokens<kRows> tokens;
    float ddelta[kRows];   // gradients of Δ where it scales x
    double dg_sum[kRows];  // gradients of G: differences of larger sums if the decay is strong
    float kept[kSsdThreads];
    float skipped[kRows];  // x · dout
  };

  __device__ Backward(const SsdArguments<T>& in, const SsdGradients<T>& out, char* memory, Scalars& scalars)
      : in_(in),
        out_(out),
        s_(scalars),
        place_(in.place(blockIdx.x)),
        key_pitch_(ssd_pitch<T>(in.size)),
        value_pitch_(ssd_pitch<T>(in.dim)),
        state_pitch_(ssd_pitch<float>(in.dim)) {
    const SharedLayout layout = SharedLayout::of<T>(in.size, in.dim);
    pairs_ = reinterpret_cast<float*>(memory);
    partials_ = reinterpret_cast<float*>(memory + layout.pairs);
    b_ = reinterpret_cast<T*>(memory + layout.pairs + layout.partials);
    c_ = b_ + kRows * key_pitch_;
    x_ = c_ + kRows * key_pitch_;
    dout_ = x_ + kRows * value_pitch_;
  }

  __device__ void run() {
    const int of_group = in_.heads / in_.groups;
    group_ = static_cast<int>(blockIdx.y) / in_.blocks;
    block_ = static_cast<int>(blockIdx.y) % in_.blocks;
    const int begin = block_ * static_cast<int>(kSsdHeadBlock);
    const int end = min(begin + static_cast<int>(kSsdHeadBlock), of_group);
    if (place_.rows > 0) {
      load_ssd_rows(in_.xbc + in_.b(place_.row, group_), in_.width, place_.rows, in_.size, b_);
      load_ssd_rows(in_.xbc + in_.c(place_.row, group_), in_.width, place_.rows, in_.size, c_);
    }
    for (int i = begin; i < end; ++i) {
      const int head = group_ * of_group + i;
      if (place_.rows > 0) {
        differentiate(head, i > begin);
      } else if (threadIdx.x == 0) {
        store_weights(head, 0.0f, 0.0f, 0.0f);
      }
    }
  }

 private:
  __device__ void differentiate(int head, bool add) {
    const int n = place_.rows, thread = static_cast<int>(threadIdx.x);
    const float* before = place_.first() ? nullptr : out_.states + in_.state(place_.after - 1, head);
    const float* behind = place_.last ? nullptr : out_.dstates + in_.state(place_.after, head);
    s_.tokens.load(in_, place_, head);
    load_ssd_rows(in_.xbc + in_.x(place_.row, head), in_.width, n, in_.dim, x_);
    load_ssd_rows(out_.dout + in_.output(place_.row, head), int64_t{in_.heads} * in_.dim, n, in_.dim, dout_);
    if (thread < n) s_.ddelta[thread] = 0.0f, s_.dg_sum[thread] = 0.0;
    __syncthreads();
    if (behind != nullptr) differentiate_update(behind, add);
    if (before != nullptr) differentiate_reads(before, behind, add);
    differentiate_scores(head, behind, add || before != nullptr, add || behind != nullptr);
    if (thread == 0) store_steps(head);
    __syncthreads();
  }

  /// Copies a state [N, P] to pairs_.
  __device__ void stage(const float* state) {
    load_ssd_rows(state, in_.dim, in_.size, in_.dim, pairs_);
    __syncthreads();
  }

  /// Gradient of B (`of_c` false) or C of a row of the chunk's first block.
  __device__ float& key_gradient(int i, int k, bool of_c) const {
    const int64_t columns = int64_t{2} * in_.groups * in_.size;
    return out_
        .keys[(block_ * in_.tokens + place_.row + i) * columns + ((of_c ? in_.groups : 0) + group_) * in_.size + k];
  }
  __device__ void add_key_gradient(int i, int k, bool of_c, float value, bool add) const {
    float& to = key_gradient(i, k, of_c);
    to = add ? to + value : value;
  }

  /// The gradient of B or C by a state: factor(i) Σ_c values[i, c] state[k, c]. Sums of its products with the rows of B
  /// or C themselves are left in partials_.
  template <class Factor>
  __device__ void through_state(const T* values, const T* keys, bool of_c, bool add, const Factor& factor) {
    ssd_product<T>(
        place_.rows, in_.size, in_.dim, [&](int i, int c) { return values[i * value_pitch_ + c]; },
        [&](int c, int k) { return pairs_[k * state_pitch_ + c]; },
        [&](int i, int first, int step, const float(&sums)[4]) {
          float partial = 0.0f;
#pragma unroll
          for (int c = 0; c < 4; ++c) {
            const int k = first + c * step;
            if (k >= in_.size) continue;
            add_key_gradient(i, k, of_c, factor(i) * sums[c], add);
            partial = fmaf(sums[c], to_float(keys[i * key_pitch_ + k]), partial);
          }
          partials_[i * kPartials + first] = partial;
        });
  }
  __device__ float sum_partials(int i) const {
    float sum = 0.0f;
    for (int part = 0; part < ssd_parts<T>(in_.size); ++part) sum += partials_[i * kPartials + part];
    return sum;
  }

  /// Backward of the chunk's additions to the state after it, but for x.
  __device__ void differentiate_update(const float* behind, bool add) {
    const int i = static_cast<int>(threadIdx.x), n = place_.rows;
    const SsdTokens<kRows>& t = s_.tokens;
    stage(behind);
    through_state(x_, b_, false, add, [&](int row) { return t.to_end[row] * t.delta[row]; });
    if (i < n) {
      s_.ddelta[i] = t.to_end[i] * sum_partials(i);
      s_.dg_sum[i] = -static_cast<double>(t.delta[i] * s_.ddelta[i]);
    }
    __syncthreads();
    if (i == 0) {
      double all = 0.0;
      for (int row = 0; row < n; ++row) all += s_.dg_sum[row];
      s_.dg_sum[n - 1] -= all;
    }
    __syncthreads();
  }

  /// Backward of the chunk's reads of the state before it, and of what it keeps of that.
  __device__ void differentiate_reads(const float* before, const float* behind, bool add) {
    const int i = static_cast<int>(threadIdx.x), n = place_.rows;
    stage(before);
    through_state(dout_, c_, true, add, [&](int row) { return s_.tokens.grown[row]; });
    float kept = 0.0f;
    for (int at = i; behind != nullptr && at < in_.size * in_.dim; at += kSsdThreads) {
      kept = fmaf(before[at], behind[at], kept);
    }
    s_.kept[i] = kept;
    if (i < n) s_.dg_sum[i] += static_cast<double>(s_.tokens.grown[i] * sum_partials(i));
    __syncthreads();
    if (i == 0 && behind != nullptr) {
      double all = 0.0;
      for (const float part : s_.kept) all += static_cast<double>(part);
      s_.dg_sum[n - 1] += static_cast<double>(s_.tokens.grown[n - 1]) * all;
    }
    __syncthreads();
  }

  /// Backward of P V and of D x, and the gradient of x by the state after the chunk.
  __device__ void differentiate_scores(int head, const float* behind, bool add_c, bool add_b) {
    const int thread = static_cast<int>(threadIdx.x), n = place_.rows;
    const SsdTokens<kRows>& t = s_.tokens;
    float* const p = pairs_;
    float* const e = pairs_ + kRows * kPitch;
    ssd_elements<T>(
        n, n, in_.size, [&](int i, int k) { return c_[i * key_pitch_ + k]; },
        [&](int k, int j) { return b_[j * key_pitch_ + k]; },
        [&](int i, int j, float sum) { p[i * kPitch + j] = j <= i ? sum * t.decay(i, j) : 0.0f; });
    ssd_elements<T>(
        n, n, in_.dim, [&](int i, int c) { return dout_[i * value_pitch_ + c]; },
        [&](int c, int j) { return x_[j * value_pitch_ + c]; },
        [&](int i, int j, float sum) { e[i * kPitch + j] = j <= i ? sum : 0.0f; });
    if (thread < n) {
      const int i = thread;
      float by_x = 0.0f;
      double change = 0.0;  // gradient of G_i: that of its row of P less that of its column
      for (int j = 0; j < i; ++j) change += static_cast<double>(e[i * kPitch + j] * p[i * kPitch + j] * t.delta[j]);
      for (int r = i; r < n; ++r) {
        const float product = e[r * kPitch + i] * p[r * kPitch + i];
        by_x += product;
        if (r > i) change -= static_cast<double>(product * t.delta[i]);
      }
      s_.ddelta[i] += by_x;
      s_.dg_sum[i] += change;
      s_.skipped[i] = e[i * kPitch + i];
    }
    __syncthreads();
    if (out_.dxbc != nullptr) {
      const float skip = in_.d.at(head);
      ssd_elements<T>(
          n, in_.dim, behind == nullptr ? n : n + in_.size,
          [&](int i, int k) { return k < n ? p[k * kPitch + i] : t.to_end[i] * to_float(b_[i * key_pitch_ + k - n]); },
          [&](int k, int j) { return k < n ? to_float(dout_[k * value_pitch_ + j]) : behind[(k - n) * in_.dim + j]; },
          [&](int i, int j, float sum) {
            T& to = out_.dxbc[in_.x(place_.row + i, head) + j];
            const float value = fmaf(skip, to_float(dout_[i * value_pitch_ + j]), t.delta[i] * sum);
            to = from_float<T>(out_.add_xbc ? value + to_float(to) : value);
          });
    }
    for (int at = thread; at < n * n; at += kSsdThreads) {
      const int i = at / n, j = at % n;
      if (j <= i) e[i * kPitch + j] *= t.decay(i, j) * t.delta[j];
    }
    __syncthreads();
    ssd_elements<T>(
        n, in_.size, n, [&](int i, int j) { return e[i * kPitch + j]; },
        [&](int j, int k) { return b_[j * key_pitch_ + k]; },
        [&](int i, int k, float sum) { add_key_gradient(i, k, true, sum, add_c); });
    ssd_elements<T>(
        n, in_.size, n, [&](int j, int i) { return e[i * kPitch + j]; },
        [&](int i, int k) { return c_[i * key_pitch_ + k]; },
        [&](int j, int k, float sum) { add_key_gradient(j, k, false, sum, add_b); });
  }

  /// Called by one thread.
  __device__ void store_steps(int head) {
    const float rate = -expf(in_.a_log.at(head));
    double dg = 0.0;
    float da_log = 0.0f, ddt_bias = 0.0f, dd = 0.0f;
    for (int i = place_.rows - 1; i >= 0; --i) {
      dg += s_.dg_sum[i];
      const float ddt = (s_.ddelta[i] + static_cast<float>(dg) * rate) * in_.step(place_.row + i, head).slope;
      da_log = fmaf(static_cast<float>(dg), s_.tokens.g[i], da_log);
      ddt_bias += ddt;
      dd += s_.skipped[i];
      if (out_.ddt == nullptr) continue;
      T& to = out_.ddt[(place_.row + i) * in_.heads + head];
      to = from_float<T>(out_.add_dt ? ddt + to_float(to) : ddt);
    }
    store_weights(head, da_log, ddt_bias, dd);
  }

  __device__ void store_weights(int head, float da_log, float ddt_bias, float dd) {
    const int64_t at = int64_t{blockIdx.x} * in_.heads + head;
    if (out_.a_log != nullptr) out_.a_log[at] = da_log;
    if (out_.dt_bias != nullptr) out_.dt_bias[at] = ddt_bias;
    if (out_.d != nullptr) out_.d[at] = dd;
  }

  const SsdArguments<T>& in_;
  const SsdGradients<T>& out_;
  Scalars& s_;
  SsdPlace place_;
  int key_pitch_, value_pitch_, state_pitch_;
  int group_ = 0, block_ = 0;
  float *pairs_, *partials_;
  T *b_, *c_, *x_, *dout_;
};

template <class T>
__global__ void __launch_bounds__(kSsdThreads) backward_kernel(const SsdArguments<T> in, const SsdGradients<T> out) {
  extern __shared__ __align__(16) char memory[];
  __shared__ typename Backward<T>::Scalars scalars;
  Backward<T>(in, out, memory, scalars).run();
}

/// The gradients of B and C, summed over the blocks of heads.
template <class T>
__global__ void __launch_bounds__(kSsdThreads) sum_blocks_kernel(const SsdArguments<T> in, const SsdGradients<T> out) {
  const int64_t columns = int64_t{2} * in.groups * in.size, all = in.tokens * columns;
  const int64_t at = int64_t{blockIdx.x} * kSsdThreads + threadIdx.x;
  if (at >= all) return;
  float sum = 0.0f;
  for (int block = 0; block < in.blocks; ++block) sum += out.keys[block * all + at];
  T& to = out.dxbc[at / columns * in.width + in.heads * in.dim + at % columns];
  to = from_float<T>(out.add_xbc ? sum + to_float(to) : sum);
}

template <class T>
void launch_backward(const Context& context, const SsdScanArgs& args, const SsdGradients<T>& out) {
  const SsdHeads& heads = args.heads;
  const SsdArguments<T> in(args);
  const int shared = SharedLayout::of<T>(in.size, in.dim).total();
  allow_shared_memory(&backward_kernel<T>, static_cast<size_t>(shared));
  const dim3 grid(static_cast<unsigned>(ssd_items(args)), static_cast<unsigned>(heads.num_groups * heads.blocks()));
  backward_kernel<T><<<grid, kSsdThreads, static_cast<size_t>(shared), stream_of(context)>>>(in, out);
  check_launch("differentiating the state-space scan");
  if (out.dxbc == nullptr) return;
  sum_blocks_kernel<T>
      <<<blocks_for(in.tokens * 2 * heads.keys(), kSsdThreads), kSsdThreads, 0, stream_of(context)>>>(in, out);
  check_launch("summing the gradients of B and C");
}

}  // namespace

void ssd_scan_general_grad(const Context& context, const SsdScanGradArgs& args, const SsdWeightParts& parts,
                           const SsdGeneralScratch& scratch) {
  find_ssd_states(context, args.forward, scratch);
  find_ssd_state_gradients(context, args.forward, args.dout, scratch);
  cuda::dispatch_float(args.dout.dtype, [&](auto element) {
    using T = decltype(element);
    launch_backward<T>(context, args.forward,
                       {.dout = elements<T>(args.dout),
                        .dxbc = elements<T>(args.dxbc.dst),
                        .ddt = elements<T>(args.ddt.dst),
                        .add_xbc = args.dxbc.beta != 0.0f,
                        .add_dt = args.ddt.beta != 0.0f,
                        .keys = elements<float>(scratch.keys),
                        .a_log = elements<float>(parts.a_log),
                        .dt_bias = elements<float>(parts.dt_bias),
                        .d = elements<float>(parts.d),
                        .states = elements<float>(scratch.states),
                        .dstates = elements<float>(scratch.dstates)});
  });
}

}  // namespace hone::cuda
