// The one source file that includes cuDNN's header library, which compiles slowly.
#include "ops/attention/attention_cudnn.h"

#include "core/cuda_queue.h"

#if !HONE_CUDNN_FRONTEND

namespace hone::cuda {

bool cudnn_attention_serves(const Context&, const AttentionArgs&, const CudnnSequences&) { return false; }
void cudnn_attention(const Context&, const AttentionArgs&, const CudnnSequences&) {
  HONE_ASSERT(false, "built without cuDNN's header library");
}

}  // namespace hone::cuda

#else

#define CUDNN_FRONTEND_SKIP_JSON_LIB
#include <nvrtc.h>

// The header library would compile a norm for another GPU at run time. It is told that there is no compiler, which
// spares the program a large library; cuDNN opens that itself where it is needed.
template <class... Arguments>
static nvrtcResult no_compiler(Arguments...) {
  return NVRTC_ERROR_INTERNAL_ERROR;
}
#define nvrtcCreateProgram(...) no_compiler(__VA_ARGS__)
#define nvrtcDestroyProgram(...) no_compiler(__VA_ARGS__)
#define nvrtcCompileProgram(...) no_compiler(__VA_ARGS__)
#define nvrtcGetProgramLogSize(...) no_compiler(__VA_ARGS__)
#define nvrtcGetProgramLog(...) no_compiler(__VA_ARGS__)
#define nvrtcGetCUBINSize(...) no_compiler(__VA_ARGS__)
#define nvrtcGetCUBIN(...) no_compiler(__VA_ARGS__)

#include <cudnn_frontend.h>

#include <map>
#include <tuple>

namespace hone::cuda {

namespace {

namespace fe = cudnn_frontend;

/// Names of tensors in a graph.
enum Uid : int64_t { kQ = 1, kK, kV, kOut, kStats, kLengths, kQueryRows, kKeyRows, kValueRows, kOutRows, kStatsRows };

/// What a plan is built for.
struct Sizes {
  AttentionOptions options;
  int64_t num_documents, max_seqlen;

  auto tied() const {
    return std::tie(options.num_heads, options.num_kv_heads, options.head_dim, options.v_head_dim, options.scale,
                    options.sliding_window, num_documents, max_seqlen);
  }
  bool operator<(const Sizes& other) const { return tied() < other.tied(); }
};

/// A graph with its plan, or why there is none.
struct Plan {
  std::shared_ptr<fe::graph::Graph> graph;
  std::string refusal;
};

struct CudnnAttentionPlans {
  std::map<Sizes, Plan> plans;
};

using TensorAttributes = std::shared_ptr<fe::graph::Tensor_attributes>;

class ForwardGraph {
 public:
  explicit ForwardGraph(const Sizes& sizes) : sizes_(sizes) {
    const AttentionOptions& options = sizes.options;
    graph_->set_io_data_type(fe::DataType_t::BFLOAT16)
        .set_intermediate_data_type(fe::DataType_t::FLOAT)
        .set_compute_data_type(fe::DataType_t::FLOAT);
    const TensorAttributes lengths = index("lengths", kLengths, sizes.num_documents, fe::DataType_t::INT32);
    const int64_t dim = options.head_dim, v_dim = options.v_head_dim;
    const TensorAttributes q = rows("q", kQ, options.num_heads, dim, offsets("query_rows", kQueryRows));
    const TensorAttributes k = rows("k", kK, options.num_kv_heads, dim, offsets("key_rows", kKeyRows));
    const TensorAttributes v = rows("v", kV, options.num_kv_heads, v_dim, offsets("value_rows", kValueRows));
    fe::graph::SDPA_attributes attributes;
    attributes.set_name("attention")
        .set_generate_stats(true)
        .set_attn_scale(options.scale)
        .set_padding_mask(true)
        .set_seq_len_q(lengths)
        .set_seq_len_kv(lengths)
        .set_diagonal_alignment(fe::DiagonalAlignment_t::TOP_LEFT)
        .set_diagonal_band_right_bound(0);
    if (options.sliding_window > 0) {
      attributes.set_diagonal_band_left_bound(static_cast<int>(options.sliding_window));
    }
    const auto [out, stats] = graph_->sdpa(q, k, v, attributes);
    out->set_output(true).set_uid(kOut);
    out->set_dim(dims(options.num_heads, v_dim)).set_stride(strides(options.num_heads, v_dim));
    out->set_ragged_offset(offsets("out_rows", kOutRows));
    stats->set_output(true)
        .set_uid(kStats)
        .set_data_type(fe::DataType_t::FLOAT)
        .set_dim({sizes.num_documents, options.num_heads, sizes.max_seqlen, 1})
        .set_stride({options.num_heads * sizes.max_seqlen, 1, options.num_heads, 1});
    stats->set_ragged_offset(offsets("stats_rows", kStatsRows));
  }

  Plan build(cudnnHandle_t handle) {
    fe::error_t status = graph_->validate();
    if (status.is_good()) status = graph_->build_operation_graph(handle);
    if (status.is_good()) status = graph_->create_execution_plans({fe::HeurMode_t::A});
    if (status.is_good()) status = graph_->check_support();
    if (status.is_good()) status = graph_->build_plans();
    if (status.is_bad()) return {nullptr, status.get_message()};
    if (graph_->get_workspace_size() > static_cast<int64_t>(CudaQueue::kWorkspaceBytes)) {
      return {nullptr, "more workspace than is kept for libraries"};
    }
    return {graph_, ""};
  }

 private:
  std::vector<int64_t> dims(int64_t heads, int64_t dim) const {
    return {sizes_.num_documents, heads, sizes_.max_seqlen, dim};
  }
  std::vector<int64_t> strides(int64_t heads, int64_t dim) const {
    return {sizes_.max_seqlen * heads * dim, dim, heads * dim, 1};
  }
  TensorAttributes index(const char* name, Uid uid, int64_t count, fe::DataType_t type) {
    fe::graph::Tensor_attributes attributes;
    attributes.set_name(name).set_uid(uid).set_dim({count, 1, 1, 1}).set_stride({1, 1, 1, 1}).set_data_type(type);
    return graph_->tensor(attributes);
  }
  TensorAttributes offsets(const char* name, Uid uid) {
    return index(name, uid, sizes_.num_documents + 1, fe::DataType_t::INT64);
  }
  TensorAttributes rows(const char* name, Uid uid, int64_t heads, int64_t dim,
                        const TensorAttributes& offsets_of_documents) {
    fe::graph::Tensor_attributes attributes;
    attributes.set_name(name).set_uid(uid).set_dim(dims(heads, dim)).set_stride(strides(heads, dim));
    attributes.set_ragged_offset(offsets_of_documents);
    return graph_->tensor(attributes);
  }

  Sizes sizes_;
  std::shared_ptr<fe::graph::Graph> graph_ = std::make_shared<fe::graph::Graph>();
};

cudnnHandle_t handle_of(const Context& context) {
  return static_cast<cudnnHandle_t>(context.stream().cuda().libraries().cudnn);
}

const Plan& plan_of(const Context& context, const AttentionArgs& args, const CudnnSequences& sequences) {
  const Sizes sizes{args.options, sequences.num_documents, sequences.max_seqlen};
  auto& plans = context.stream().cuda().state<CudnnAttentionPlans>().plans;
  const auto found = plans.find(sizes);
  if (found != plans.end()) return found->second;
  return plans.emplace(sizes, ForwardGraph(sizes).build(handle_of(context))).first->second;
}

}  // namespace

bool cudnn_attention_serves(const Context& context, const AttentionArgs& args, const CudnnSequences& sequences) {
  // Packed documents need sm_90.
  if (context.stream().general_kernels() || context.stream().cuda().compute_capability() < 90) return false;
  const auto serves = [](int64_t dim) { return dim % 8 == 0 && dim <= 256; };
  if (args.q.dtype != DType::kBF16 || !serves(args.options.head_dim) || !serves(args.options.v_head_dim)) return false;
  return plan_of(context, args, sequences).graph != nullptr;
}

void cudnn_attention(const Context& context, const AttentionArgs& args, const CudnnSequences& sequences) {
  const Plan& plan = plan_of(context, args, sequences);
  HONE_ASSERT(plan.graph != nullptr, plan.refusal);
  std::unordered_map<int64_t, void*> tensors{{kQ, args.q.data},
                                             {kK, args.k.data},
                                             {kV, args.v.data},
                                             {kOut, args.out.data},
                                             {kStats, args.lse.data},
                                             {kLengths, sequences.lengths.data},
                                             {kQueryRows, sequences.query_rows.data},
                                             {kKeyRows, sequences.key_rows.data},
                                             {kValueRows, sequences.value_rows.data},
                                             {kOutRows, sequences.out_rows.data},
                                             {kStatsRows, sequences.stats_rows.data}};
  fe::error_t status = plan.graph->execute(handle_of(context), tensors, context.stream().cuda().libraries().workspace);
  if (status.is_bad()) {
    throw Error(ExitCode::kDeviceFailed, "cuDNN cannot compute attention: " + status.get_message(), "", "");
  }
}

}  // namespace hone::cuda

#endif
