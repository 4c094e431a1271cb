#include "weights/adapter_layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>
#include <utility>

#include "core/base/error.h"
#include "params/adapter_kind.h"
#include "params/pattern.h"
#include "weights/tensor_dims.h"

namespace hone {

const char* prefix_of(ExpertNaming names) { return names == ExpertNaming::kServing ? "" : kAdapterKeyPrefix; }

bool can_be_saved_whole(ParameterKind kind) {
  return kind == ParameterKind::kRouter || kind == ParameterKind::kEmbedding || kind == ParameterKind::kHead ||
         kind == ParameterKind::kNorm;
}

std::vector<std::string> whole_names(const ParameterStore& store, const Parameter& whole) {
  std::vector<std::string> names = {whole.name()};
  const bool tied = whole.spec().kind == ParameterKind::kEmbedding &&
                    std::none_of(store.all().begin(), store.all().end(),
                                 [](const Parameter& p) { return p.spec().kind == ParameterKind::kHead; });
  if (tied) names.push_back("lm_head.weight");
  return names;
}

std::string kt_key(const Parameter& experts, const std::string& part, bool a) {
  const std::string projection = part.substr(0, part.find('_'));  // gate of gate_proj
  return fmt::format("layers.{}.experts.{}_lora_{}", experts.spec().layer, projection, a ? "a" : "b");
}

ExpertKeys::ExpertKeys(const Parameter& experts, ExpertNaming names) : experts_(experts), naming_(names) {
  for (const FileTensor& tensor : separate_experts(experts)) names_[tensor.offset] = without_weight(tensor.name);
}

std::string ExpertKeys::module(int64_t expert, int64_t out_begin) const {
  if (naming_ == ExpertNaming::kFile) {
    const auto found = names_.find((expert * experts_.shape()[1] + out_begin) * experts_.shape()[2]);
    HONE_ASSERT(found != names_.end(), experts_.name());
    return prefix_of(naming_) + found->second;
  }
  const std::string experts = naming_ == ExpertNaming::kServing
                                  ? fmt::format("model.layers.{}.mlp.experts", experts_.spec().layer)
                                  : prefix_of(naming_) + experts_module(experts_);
  const auto parts = parts_of(experts_);
  const auto part = std::find_if(parts.begin(), parts.end(),
                                 [&](const ExpertPart& candidate) { return candidate.out_begin == out_begin; });
  HONE_ASSERT(part != parts.end(), experts_.name());
  return fmt::format("{}.{}.{}", experts, expert, part->name);
}

std::string ExpertKeys::leaf(int64_t out_begin) const {
  const std::string name = module(0, out_begin);
  return name.substr(name.rfind('.') + 1);
}

namespace {

/// Calls body(index in the parameter, index in the file) for every element.
template <class Body>
void for_each_element(const AdapterBlock& block, const Body& body) {
  const auto &parameter = block.in_parameter.strides, &file = block.in_file.strides;
  for (int64_t i = 0; i < block.counts[0]; ++i) {
    for (int64_t j = 0; j < block.counts[1]; ++j) {
      const int64_t from = block.in_parameter.begin + i * parameter[0] + j * parameter[1];
      const int64_t to = block.in_file.begin + i * file[0] + j * file[1];
      for (int64_t k = 0; k < block.counts[2]; ++k) body(from + k * parameter[2], to + k * file[2]);
    }
  }
}

bool is_contiguous(const AdapterBlock& block, const AdapterBlock::Place& place) {
  const auto& [planes, rows, columns] = block.counts;
  return (columns == 1 || place.strides[2] == 1) && (rows == 1 || place.strides[1] == columns) &&
         (planes == 1 || place.strides[0] == rows * columns);
}

bool is_run(const AdapterBlock& block) {
  return block.factor == 1 && is_contiguous(block, block.in_parameter) && is_contiguous(block, block.in_file);
}

}  // namespace

int64_t AdapterTensor::numel() const {
  return std::accumulate(dims.begin(), dims.end(), int64_t{1}, std::multiplies<>());
}

bool AdapterTensor::is_run() const {
  return blocks.size() == 1 && blocks.front().numel() == numel() && hone::is_run(blocks.front());
}

std::span<const float> gather(const AdapterTensor& tensor, const ParameterValues& values, std::vector<float>& scratch) {
  const auto numel = static_cast<size_t>(tensor.numel());
  if (tensor.is_run()) return {values(tensor.parameter()) + tensor.blocks.front().in_parameter.begin, numel};
  scratch.assign(numel, 0.0f);
  for (const AdapterBlock& block : tensor.blocks) {
    const float* from = values(*block.parameter);
    float* to = scratch.data();
    if (block.factor == 1) {
      for_each_element(block, [&](int64_t in_parameter, int64_t in_file) { to[in_file] = from[in_parameter]; });
    } else {
      for_each_element(block,
                       [&](int64_t in_parameter, int64_t in_file) { to[in_file] = block.factor * from[in_parameter]; });
    }
  }
  return scratch;
}

void scatter(const AdapterTensor& tensor, const std::vector<float>& file_values) {
  int64_t begin = tensor.blocks.front().in_parameter.begin;
  for (const AdapterBlock& block : tensor.blocks) begin = std::min(begin, block.in_parameter.begin);
  const auto count = static_cast<int64_t>(file_values.size());
  if (tensor.is_run()) return write_values(tensor.parameter(), begin, file_values.data(), count);
  std::vector<float> values(file_values.size());
  for (const AdapterBlock& block : tensor.blocks) {
    for_each_element(block, [&](int64_t in_parameter, int64_t in_file) {
      values[static_cast<size_t>(in_parameter - begin)] = file_values[static_cast<size_t>(in_file)];
    });
  }
  write_values(tensor.parameter(), begin, values.data(), count);
}

namespace {

/// Input of a layout's function: a weight with its adapters, or a weight saved in full.
struct Source {
  const ParameterStore& store;
  const Parameter& weight;
  ExpertNaming names;
  int64_t rank = 0;    ///< rank in the file
  bool inner = false;  ///< a fused gate_up (or up) with a fused down: PEFT wraps gate_up first
};

using Cell = void (*)(const Source& source, std::vector<AdapterTensor>& tensors);

/// Tensors with one or two dimensions; extra ranks of the file are zero.
void linear(const Source& source, std::vector<AdapterTensor>& tensors) {
  const std::string& name = source.weight.name();
  const std::string module =
      prefix_of(source.names) + name.substr(0, name.size() - (name.ends_with(".weight") ? 7 : 0));
  for (const auto& attached : source.weight.adapters()) {
    for (const AdapterPart& part : attached->tensors()) {
      const Shape& shape = part.parameter->shape();
      AdapterTensor tensor{module + part.suffix, dims_of(shape), {}};
      AdapterBlock block = AdapterBlock::run(*part.parameter, 0, shape.numel());
      if (part.role == AdapterPart::Role::kA) tensor.dims[0] = source.rank;
      if (part.role == AdapterPart::Role::kB) {
        tensor.dims[1] = source.rank;
        block = {part.parameter, {1, shape[0], shape[1]}, {0, {0, shape[1], 1}}, {0, {0, source.rank, 1}}};
      }
      tensor.blocks = {block};
      tensors.push_back(std::move(tensor));
    }
  }
}

/// An A and a B for each projection of each expert. A shared adapter's A is copied, its B is split by rows.
void each_expert(const Source& source, std::vector<AdapterTensor>& tensors) {
  const Parameter& weight = source.weight;
  const ExpertKeys keys(weight, source.names);
  for (const auto& attached : weight.adapters()) {
    const AdapterPlace& place = attached->place();
    for (int64_t e = 0; e < weight.shape()[0]; ++e) {
      for (const ExpertPart& projection : parts_of(weight)) {
        if (!place.shared && place.out_begin != projection.out_begin) continue;
        const std::string module = keys.module(e, projection.out_begin);
        for (const AdapterPart& part : attached->tensors()) {
          const bool is_b = part.role == AdapterPart::Role::kB;
          const Shape& shape = part.parameter->shape();  // [E, rows, columns]
          const int64_t first = is_b ? projection.out_begin - place.out_begin : 0;
          const int64_t rows = is_b ? projection.out_count : shape[1], columns = shape[2];
          tensors.push_back({module + part.suffix,
                             {rows, columns},
                             {AdapterBlock::run(*part.parameter, (e * shape[1] + first) * columns, rows * columns)},
                             false,
                             kt_key(weight, projection.name, !is_b)});
        }
      }
    }
  }
}

/// Outputs [begin, end) in memory, `step` rows apart in the file.
struct OutputRun {
  int64_t begin, end;
};

std::vector<OutputRun> output_runs(const MatrixOrder& order, int64_t begin, int64_t count) {
  const int64_t end = begin + count, middle = order.interleaved ? order.out / 2 : end;
  std::vector<OutputRun> runs;
  for (const OutputRun run : {OutputRun{begin, std::min(end, middle)}, OutputRun{std::max(begin, middle), end}}) {
    if (run.begin < run.end) runs.push_back(run);
  }
  return runs;
}

/// PEFT's target_parameters: A [r·E, in] as [E, r, in], B [out, r·E] as [out, r, E] with outputs in the file's order. A
/// of gate and A of up are concatenated along r, B is block-diagonal and scaled by the ratio of the part's scaling to
/// that of the whole; remaining ranks are zero.
void fused(const Source& source, std::vector<AdapterTensor>& tensors) {
  const Parameter& weight = source.weight;
  const int64_t experts = weight.shape()[0], out = weight.shape()[1], in = weight.shape()[2], rank = source.rank;
  const std::string module = prefix_of(source.names) + experts_module(weight) + (source.inner ? ".base_layer" : "");
  const MatrixOrder order(weight.spec().order, weight.shape());
  const int64_t step = order.interleaved ? 2 : 1;
  AdapterTensor a{module + ".lora_A.weight", {rank * experts, in}, {}};
  AdapterTensor b{module + ".lora_B.weight", {out, rank * experts}, {}};
  int64_t first = 0;
  for (const auto& attached : weight.adapters()) {
    const AdapterPlace& place = attached->place();
    const LowRank& low_rank = *attached->low_rank();
    const int64_t r = attached->scale().rank, count = place.out_count;
    a.blocks.push_back({low_rank.a, {experts, r, in}, {0, {r * in, in, 1}}, {first * in, {rank * in, in, 1}}});
    for (const OutputRun& run : output_runs(order, place.out_begin, count)) {
      b.blocks.push_back(
          {low_rank.b,
           {experts, run.end - run.begin, r},
           {(run.begin - place.out_begin) * r, {count * r, r, 1}},
           {(order.file_output(run.begin) * rank + first) * experts, {1, step * rank * experts, experts}},
           low_rank.factors.scaling / weight.adapters().front()->low_rank()->factors.scaling});
    }
    first += r;
  }
  tensors.push_back(std::move(a));
  tensors.push_back(std::move(b));
}

/// KTransformers' tensors of all experts of a projection, [E, r, in] and [E, out, r]; zeros for experts without an
/// adapter. KTransformers loads a file only if it has the tensors of every layer's experts.
void stacked(const Source& source, std::vector<AdapterTensor>& tensors) {
  const Parameter& weight = source.weight;
  const int64_t experts = weight.shape()[0], in = weight.shape()[2], r = source.rank;
  for (const ExpertPart& projection : parts_of(weight)) {
    const int64_t rows = projection.out_count;
    AdapterTensor a{kt_key(weight, projection.name, true), {experts, r, in}, {}};
    AdapterTensor b{kt_key(weight, projection.name, false), {experts, rows, r}, {}};
    for (const auto& attached : weight.adapters()) {
      const AdapterPlace& place = attached->place();
      if (!place.shared && place.out_begin != projection.out_begin) continue;
      const LowRank& low_rank = *attached->low_rank();
      a.blocks = {AdapterBlock::run(*low_rank.a, 0, experts * r * in)};
      b.blocks = {{low_rank.b,
                   {experts, rows, r},
                   {(projection.out_begin - place.out_begin) * r, {place.out_count * r, r, 1}},
                   {0, {rows * r, r, 1}}}};
    }
    tensors.push_back(std::move(a));
    tensors.push_back(std::move(b));
  }
}

/// The full weight, under each of its names.
void whole(const Source& source, std::vector<AdapterTensor>& tensors) {
  const Shape& shape = source.weight.shape();
  for (const std::string& name : whole_names(source.store, source.weight)) {
    tensors.push_back({prefix_of(source.names) + name,
                       dims_of(shape),
                       {AdapterBlock::run(const_cast<Parameter&>(source.weight), 0, shape.numel())},
                       true});
  }
}

struct LayoutRow {
  AdapterLayout layout;
  ExpertNaming names;
  Cell linear, split_experts, shared_experts, whole;  ///< null: not supported by the layout

  /// The function for a weight's adapters.
  Cell cell(const Parameter& weight) const {
    if (!is_experts(weight)) return linear;
    const bool shared = !weight.adapters().empty() && weight.adapters().front()->place().shared;
    return shared ? shared_experts : split_experts;
  }
};

constexpr LayoutRow kLayouts[] = {
    {AdapterLayout::kSplit, ExpertNaming::kFile, linear, each_expert, each_expert, whole},
    {AdapterLayout::kTargetParameters, ExpertNaming::kFile, linear, fused, fused, whole},
    {AdapterLayout::kKt, ExpertNaming::kFile, linear, stacked, stacked, nullptr},
    {AdapterLayout::kSglang, ExpertNaming::kServing, linear, each_expert, each_expert, nullptr},
    {AdapterLayout::kAsTrained, ExpertNaming::kFile, linear, each_expert, fused, whole},
};

const LayoutRow& row_of(AdapterLayout layout) {
  return *std::find_if(std::begin(kLayouts), std::end(kLayouts),
                       [&](const LayoutRow& row) { return row.layout == layout; });
}

/// Whether the weight begins experts and is fused in the file together with the down of the same experts.
bool is_inner(const ParameterStore& store, const LayoutRow& row, const Parameter& weight) {
  if (!begins_experts(weight.spec().kind)) return false;
  return std::any_of(store.all().begin(), store.all().end(), [&](const Parameter& other) {
    return &other != &weight && is_experts(other) && experts_module(other) == experts_module(weight) &&
           !other.adapters().empty() && row.cell(other) == fused;
  });
}

bool is_saved_whole(const Parameter& p) { return p.trainable() && can_be_saved_whole(p.spec().kind); }

/// The effective layout: target_parameters instead of split for experts that model files store fused only.
AdapterLayout layout_for(const ParameterStore& store, AdapterLayout layout) {
  if (layout != AdapterLayout::kSplit) return layout;
  const bool no_files = std::any_of(store.all().begin(), store.all().end(), [](const Parameter& p) {
    return is_experts(p) && !p.adapters().empty() && !has_expert_files(p);
  });
  return no_files ? AdapterLayout::kTargetParameters : layout;
}

}  // namespace

std::vector<AdapterTensor> adapter_tensors(const ParameterStore& store, ExpertNaming names) {
  const LayoutRow& row = row_of(AdapterLayout::kAsTrained);
  std::vector<AdapterTensor> tensors;
  for (const Parameter& p : store.all()) {
    const int64_t rank = p.adapters().empty() ? 0 : p.adapters().front()->scale().rank;
    if (!p.adapters().empty()) row.cell(p)({store, p, names, rank, is_inner(store, row, p)}, tensors);
    if (is_saved_whole(p)) row.whole({store, p, names}, tensors);
  }
  return tensors;
}

bool is_for_servers(AdapterLayout layout) { return row_of(layout).whole == nullptr; }

void require_layout(const ParameterStore& store, AdapterLayout layout) {
  if (!is_for_servers(layout)) return;
  std::set<std::pair<int64_t, double>> scales;
  for (const Parameter& p : store.all()) {
    for (const auto& attached : p.adapters()) {
      scales.insert({attached->scale().rank, attached->scale().alpha});
      if (p.spec().kind == ParameterKind::kRouter) {
        throw UserError("the adapter adapts the router too, which the layouts kt and sglang do not support",
                        "adapter_layout", "use split or target_parameters, or merge the adapter");
      }
      if (p.spec().kind == ParameterKind::kExpertsUp) {
        throw UserError("experts without a gate have no place in the layouts kt and sglang", "adapter_layout",
                        "use split or target_parameters, or merge the adapter");
      }
      if (attached->kind().for_servers) continue;
      throw UserError(
          fmt::format("the adapter is a {}, which the layouts kt and sglang do not support", attached->kind().name),
          "adapter_layout", "use split or target_parameters, or merge the adapter");
    }
    if (!is_saved_whole(p)) continue;
    throw UserError(
        p.spec().kind == ParameterKind::kRouter
            ? "the adapter trains the router too, which the layouts kt and sglang do not support"
            : "the adapter trains '" + p.name() + "' in full, which the layouts kt and sglang do not support",
        "adapter_layout", "use split or target_parameters, freeze it, or merge the adapter");
  }
  if (scales.size() <= 1) return;
  throw UserError("the adapters have different ranks or alphas, which the layouts kt and sglang do not support",
                  "adapter_layout", "use split or target_parameters, or merge the adapter");
}

AdapterFiles::AdapterFiles(const ParameterStore& store, const LoraOptions& lora, AdapterLayout layout)
    : store_(store), lora_(lora), layout_(layout_for(store, layout)) {
  for (const Parameter& p : store.all()) {
    for (const auto& attached : p.adapters()) {
      uniform_ &= attached->scale() == AdapterScale{lora.r, lora.alpha};
      fused_split_ |= layout_ == AdapterLayout::kTargetParameters && is_experts(p) && !attached->place().shared;
    }
    joins_parts_ |= fused_split_ && is_experts(p) && parts_of(p).size() > 1 && !p.adapters().empty();
  }
}

ExpertNaming AdapterFiles::names() const { return row_of(layout_).names; }

bool AdapterFiles::fuses(const AttachedAdapter& attached) const {
  const LayoutRow& row = row_of(layout_);
  return (attached.place().shared ? row.shared_experts : row.split_experts) == fused;
}

AdapterScale AdapterFiles::scale(const Parameter& adapted, const AttachedAdapter& attached) const {
  if (!joins_parts_) return attached.scale();
  const AdapterScale first = adapted.adapters().front()->scale();
  int64_t rank = 0;
  for (const auto& part : adapted.adapters()) rank += part->scale().rank;
  if (uniform_) rank = 2 * lora_.r;
  const double growth = static_cast<double>(rank) / static_cast<double>(first.rank);
  return {rank, first.alpha * (lora_.use_rslora ? std::sqrt(growth) : growth)};
}

/// Whether the layout stores these experts in another form than memory.
bool AdapterFiles::comes_first(const Parameter& weight) const {
  return is_experts(weight) &&
         (fused_split_ || row_of(layout_).cell(weight) != row_of(AdapterLayout::kAsTrained).cell(weight));
}

void AdapterFiles::add(const Parameter& weight, std::vector<AdapterTensor>& tensors) const {
  const LayoutRow& row = row_of(layout_);
  const int64_t rank = scale(weight, *weight.adapters().front()).rank;
  row.cell(weight)({store_, weight, row.names, rank, is_inner(store_, row, weight)}, tensors);
}

std::vector<AdapterTensor> AdapterFiles::main() const {
  const LayoutRow& row = row_of(layout_);
  std::vector<AdapterTensor> tensors;
  const auto is_here = [&](const Parameter& p) { return !p.adapters().empty() && row.cell(p) != stacked; };
  for (const Parameter& p : store_.all()) {
    if (is_here(p) && comes_first(p)) add(p, tensors);
  }
  for (const Parameter& p : store_.all()) {
    if (is_here(p) && !comes_first(p)) add(p, tensors);
    if (is_saved_whole(p)) row.whole({store_, p, row.names}, tensors);
  }
  return tensors;
}

std::vector<AdapterTensor> AdapterFiles::experts() const {
  const LayoutRow& row = row_of(layout_);
  std::vector<AdapterTensor> tensors;
  if (row.split_experts != stacked) return tensors;
  const bool some = std::any_of(store_.all().begin(), store_.all().end(),
                                [](const Parameter& p) { return is_experts(p) && !p.adapters().empty(); });
  if (!some) return tensors;
  for (const Parameter& p : store_.all()) {
    if (is_experts(p)) row.cell(p)({store_, p, row.names, lora_.r}, tensors);
  }
  return tensors;
}

}  // namespace hone
