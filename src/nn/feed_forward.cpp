#include "nn/feed_forward.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "ops/add/add.h"
#include "ops/cast/cast.h"
#include "ops/expert_scale/expert_scale.h"
#include "ops/mlp_activation/mlp_activation.h"
#include "ops/rms_norm/rms_norm.h"
#include "ops/router_jitter/router_jitter.h"
#include "ops/row_tiles/row_tiles.h"
#include "ops/sigmoid_gate/sigmoid_gate.h"
#include "ops/transfer/transfer.h"
#include "params/adapter.h"

namespace hone {

namespace {

ModuleSummary mlp_summary(int64_t width) { return {"MLP", fmt::format("of width {}", width)}; }

using MlpBody = std::function<Var(Tape& tape, Var x, const Forward& forward)>;

/// Records body(x) in tiles of forward.mlp_token_tile tokens, if that is stated. `mlp` is the body's.
Var in_token_tiles(Tape& tape, Var x, const Forward& forward, const FeedForward& mlp, const MlpBody& body) {
  if (forward.mlp_token_tile == 0) return body(tape, x, forward);
  const auto tokens = static_cast<double>(tape.shape(x)[0]);
  return row_tiles(tape, x,
                   {.kind = "tiled_mlp",
                    .group = OpGroup::kDense,
                    .flops = mlp.flops({.tokens = tokens, .supervised = 0, .documents = {}}),
                    .body =
                        [forward, body](Tape& part, Var rows_of_x, const RowRange& rows) {
                          DeviceBatch batch = *forward.batch;
                          for (Tensor* of_token : {&batch.sample_ids, &batch.positions}) {
                            if (of_token->defined()) *of_token = rows.of(*of_token);
                          }
                          Forward of_tile = forward;
                          of_tile.batch = &batch;
                          return body(part, rows_of_x, of_tile);
                        }},
                   forward.mlp_token_tile);
}

}  // namespace

Mlp::Mlp(ParameterStore& store, const std::string& module, const MlpSizes& sizes, int layer, DType dtype)
    : activation_(sizes.activation) {
  const auto make = [&](const char* name, int64_t out, int64_t in) {
    return Linear(store, module + "." + name, out, in, sizes.bias, ParameterKind::kMlp, layer, dtype);
  };
  if (activation_.gated()) gate_proj_ = make("gate_proj", sizes.intermediate, sizes.hidden);
  up_proj_ = make("up_proj", sizes.intermediate, sizes.hidden);
  down_proj_ = make("down_proj", sizes.hidden, sizes.intermediate);
}

Var Mlp::operator()(Tape& tape, const FeedForwardInput& in, const Forward& forward) const {
  return in_token_tiles(tape, in.x, forward, *this, [this](Tape& on, Var x, const Forward& with) {
    const Var activated = gate_proj_
                              ? mlp_activation(on, activation_, (*gate_proj_)(on, x, with), up_proj_(on, x, with))
                              : mlp_activation(on, activation_, up_proj_(on, x, with));
    return down_proj_(on, activated, with);
  });
}

std::vector<const Linear*> Mlp::linears() const {
  if (!gate_proj_) return {&up_proj_, &down_proj_};
  return {&*gate_proj_, &up_proj_, &down_proj_};
}

void Mlp::collect(std::vector<Parameter*>& group) const {
  for (const Linear* linear : linears()) linear->collect(group);
}

double Mlp::flops(const ForwardWork& work) const {
  double flops = 0;
  for (const Linear* linear : linears()) flops += linear->flops(work.tokens);
  return flops;
}

ModuleSummary Mlp::summary() const { return mlp_summary(up_proj_.out()); }

FusedMlp::FusedMlp(ParameterStore& store, const std::string& module, const MlpSizes& sizes, int layer, DType dtype)
    : activation_(sizes.activation),
      input_linear_(store, module + ".input_linear", activation_.columns(sizes.intermediate), sizes.hidden, sizes.bias,
                    ParameterKind::kMlp, layer, dtype),
      output_linear_(store, module + ".output_linear", sizes.hidden, sizes.intermediate, sizes.bias,
                     ParameterKind::kMlp, layer, dtype) {}

Var FusedMlp::operator()(Tape& tape, const FeedForwardInput& in, const Forward& forward) const {
  return in_token_tiles(tape, in.x, forward, *this, [this](Tape& on, Var x, const Forward& with) {
    return output_linear_(on, mlp_activation(on, activation_, input_linear_(on, x, with)), with);
  });
}

void FusedMlp::collect(std::vector<Parameter*>& group) const {
  for (const Linear* linear : {&input_linear_, &output_linear_}) linear->collect(group);
}

double FusedMlp::flops(const ForwardWork& work) const {
  return input_linear_.flops(work.tokens) + output_linear_.flops(work.tokens);
}

ModuleSummary FusedMlp::summary() const { return mlp_summary(activation_.width(input_linear_.out())); }

SharedExpert::SharedExpert(const DecoderConfig& config, int layer, ParameterStore& store, DType dtype) {
  const std::string module = config.layer_module(layer) + config.names.shared_expert;
  const MlpSizes sizes{.hidden = config.hidden_size,
                       .intermediate = config.moe.shared_expert_intermediate_size,
                       .activation = config.activation};
  if (config.names.shared_expert_fused) {
    mlp_ = std::make_unique<FusedMlp>(store, module, sizes, layer, dtype);
  } else {
    mlp_ = std::make_unique<Mlp>(store, module, sizes, layer, dtype);
  }
  if (config.moe.shared_expert_gate) {
    gate_.emplace(store, module + "_gate", 1, sizes.hidden, false, ParameterKind::kMlp, layer, dtype);
  }
}

Var SharedExpert::operator()(Tape& tape, const FeedForwardInput& in, const Forward& forward) const {
  const Var y = (*mlp_)(tape, in, forward);
  return gate_ ? sigmoid_gate(tape, (*gate_)(tape, in.x, forward), y) : y;
}

void SharedExpert::collect(std::vector<Parameter*>& group) const {
  mlp_->collect(group);
  if (gate_) gate_->collect(group);
}

double SharedExpert::flops(const ForwardWork& work) const { return mlp_->flops(work); }

ModuleSummary SharedExpert::summary() const { return {"shared expert", mlp_->summary().text}; }

namespace {

/// The layouts of a layer's experts in files.
struct ExpertLayouts {
  std::vector<FileLayout> gate_up, down;
};

/// "model.layers.3.mlp.": the prefix of names in a module of a layer, or in the layer itself if `module` is empty.
std::string names_in(const DecoderConfig& config, int layer, const std::string& module) {
  return config.layer_module(layer) + module + (module.empty() ? "" : ".");
}

/// Adds a layout of one tensor, if its name differs from the parameter's.
void add_whole_layout(const std::string& file_name, const std::string& own_name, const Shape& shape,
                      std::vector<FileLayout>& layouts) {
  if (file_name != own_name) layouts.push_back({{file_name, shape, 0}});
}

/// Adds a layout with one tensor per expert and projection.
void add_separate_layout(const DecoderConfig& config, const std::string& module, ExpertLayouts& layouts) {
  const int64_t inner = config.moe.moe_intermediate_size, hidden = config.hidden_size;
  FileLayout gate_up, down;
  for (int64_t e = 0; e < config.moe.num_experts; ++e) {
    const auto name = [&](const std::string& projection) {
      return fmt::format("{}experts.{}.{}.weight", module, e, projection);
    };
    const int64_t begin = e * config.activation.columns(inner) * hidden, up = config.activation.gated() ? inner : 0;
    if (config.activation.gated()) gate_up.push_back({name(config.names.gate), {inner, hidden}, begin});
    gate_up.push_back({name(config.names.up), {inner, hidden}, begin + up * hidden});
    down.push_back({name(config.names.down), {hidden, inner}, e * hidden * inner});
  }
  layouts.gate_up.push_back(std::move(gate_up));
  layouts.down.push_back(std::move(down));
}

/// The name in memory of the weight of gate and up.
const char* first_of_experts(const DecoderConfig& config) {
  return config.activation.gated() ? "gate_up_proj" : "up_proj";
}

ExpertLayouts expert_layouts(const DecoderConfig& config, int layer) {
  const int64_t experts = config.moe.num_experts, inner = config.moe.moe_intermediate_size, hidden = config.hidden_size;
  const Shape first{experts, config.activation.columns(inner), hidden};
  const DecoderNames& names = config.names;
  const std::string module = names_in(config, layer, names.file_moe);
  ExpertLayouts layouts;
  if (names.experts == ExpertFiles::kSeparate) add_separate_layout(config, module, layouts);
  const std::string own = names_in(config, layer, names.moe) + "experts.";
  if (names.experts == ExpertFiles::kFusedEitherWay) {
    layouts.gate_up.push_back({{own + first_of_experts(config), first, 0, FileOrder::kTransposed}});
    layouts.down.push_back({{own + "down_proj", {experts, hidden, inner}, 0, FileOrder::kTransposed}});
  }
  add_whole_layout(module + names.fused_gate_up, own + first_of_experts(config), first, layouts.gate_up);
  add_whole_layout(module + names.fused_down, own + "down_proj", {experts, hidden, inner}, layouts.down);
  return layouts;
}

}  // namespace

MixtureOfExperts::MixtureOfExperts(const DecoderConfig& config, int layer, int64_t moe_index, ParameterStore& store,
                                   DType dtype)
    : top_k_(config.moe.num_experts_per_tok),
      moe_index_(moe_index),
      rule_(config.moe.router),
      jitter_noise_(static_cast<float>(config.moe.router_jitter_noise)),
      layer_(static_cast<uint32_t>(layer)),
      activation_(config.activation) {
  const int64_t experts = config.moe.num_experts, inner = config.moe.moe_intermediate_size, hidden = config.hidden_size;
  const DecoderNames& names = config.names;
  const std::string module = names_in(config, layer, names.moe);
  const std::string file_router = names_in(config, layer, names.file_moe) + names.file_router + ".";
  const auto add_of_router = [&](const char* name, const Shape& shape) {
    ParameterSpec spec{module + names.router + "." + name, shape, ParameterKind::kRouter, layer, {}};
    add_whole_layout(file_router + name, spec.name, shape, spec.layouts);
    return &store.add(std::move(spec), dtype);
  };
  router_ = add_of_router("weight", {experts, hidden});
  if (config.moe.router_bias) router_bias_ = add_of_router("bias", {experts});
  if (config.moe.selection_bias) {
    ParameterSpec spec{module + names.selection_bias, {experts}, ParameterKind::kBuffer, layer, {}};
    add_whole_layout(names_in(config, layer, names.file_moe) + names.file_selection_bias, spec.name,
                     names.selection_bias_row ? Shape{1, experts} : Shape{experts}, spec.layouts);
    selection_bias_ = &store.add(std::move(spec), DType::kF32);
  }
  ExpertLayouts layouts = expert_layouts(config, layer);
  const bool transposed = names.experts == ExpertFiles::kFusedTransposed;
  const auto add_of_experts = [&](const std::string& name, const Shape& shape, ParameterKind kind, FileOrder order,
                                  std::vector<FileLayout> files) {
    return &store.add({.name = module + "experts." + name,
                       .shape = shape,
                       .kind = kind,
                       .layer = layer,
                       .layouts = std::move(files),
                       .order = transposed ? order : FileOrder::kSame,
                       .of_experts = true},
                      dtype);
  };
  HONE_ASSERT(activation_.gated() || !transposed);
  gate_up_ = add_of_experts(first_of_experts(config), {experts, activation_.columns(inner), hidden},
                            activation_.gated() ? ParameterKind::kExpertsGateUp : ParameterKind::kExpertsUp,
                            FileOrder::kTransposedInterleaved, std::move(layouts.gate_up));
  down_ = add_of_experts("down_proj", {experts, hidden, inner}, ParameterKind::kExpertsDown, FileOrder::kTransposed,
                         std::move(layouts.down));
  if (config.moe.expert_bias) {
    gate_up_bias_ =
        add_of_experts(fmt::format("{}_bias", first_of_experts(config)), {experts, activation_.columns(inner)},
                       ParameterKind::kBias, FileOrder::kInterleaved, {});
    down_bias_ = add_of_experts("down_proj_bias", {experts, hidden}, ParameterKind::kBias, FileOrder::kSame, {});
  }
  if (config.moe.shared_expert_intermediate_size > 0) {
    shared_expert_ = std::make_unique<SharedExpert>(config, layer, store, dtype);
  }
  if (config.moe.reads_residual) {
    const auto add = [&](const std::string& name, const Shape& shape, ParameterKind kind, InitialValues initial) {
      return &store.add({config.layer_module(layer) + name, shape, kind, layer, {}, FileOrder::kSame, initial}, dtype);
    };
    const auto norm = [&](const char* name) {
      return add(std::string(name) + ".weight", {hidden}, ParameterKind::kNorm, config.initial_norm());
    };
    norms_ = {.router_scale = add("router.scale", {hidden}, ParameterKind::kRouter, InitialValues::kOnes),
              .before_experts = norm("pre_feedforward_layernorm_2"),
              .after_experts = norm("post_feedforward_layernorm_2"),
              .after_shared = norm("post_feedforward_layernorm_1"),
              .eps = static_cast<float>(config.rms_norm_eps),
              .weighting = config.norm_weighting};
  }
  if (config.moe.expert_scale) {
    expert_scale_ = &store.add({module + "router.per_expert_scale",
                                {experts},
                                ParameterKind::kRouter,
                                layer,
                                {},
                                FileOrder::kSame,
                                InitialValues::kOnes},
                               dtype);
  }
}

RoutedTokens MixtureOfExperts::route(Tape& tape, Var x, const Forward& forward) const {
  const auto index = static_cast<size_t>(moe_index_);
  const int64_t experts = router_->shape()[0];
  RouterOptions options{.top_k = top_k_, .rule = rule_};
  if (forward.routing != nullptr) {
    const RoutingMeasurements& measured = forward.routing->measurements;
    options.statistics = {.counts = measured.counts.rows(moe_index_, 1).reshaped({experts}),
                          .prob_sum = measured.prob_sum.rows(moe_index_, 1).reshaped({experts}),
                          .token_sums = measured.token_sums.rows(moe_index_, 1).reshaped({2})};
    options.aux = {.fractions = forward.routing->fractions,
                   .num_layers = measured.counts.shape[0],
                   .scalars = forward.step.scalars};
    options.z_loss = {.coefficient = forward.methods.router_z_loss_coef,
                      .num_layers = measured.counts.shape[0],
                      .scalars = forward.step.scalars};
  }
  if (!forward.forced_expert_ids.empty()) options.forced_ids = forward.forced_expert_ids[index];
  RouterWeights weights{.weight = router_, .bias = router_bias_, .selection_bias = selection_bias_};
  if (const AttachedAdapter* adapter = adapter_of(*router_)) {
    // Logits in x's dtype, as transformers has them; the product with the identity is exact.
    x = adapter->forward(tape, x, *router_, nullptr, forward.dropout_context());
    weights.weight = adapter->identity();
  }
  RoutedTokens routed = router(tape, x, weights, options);
  if (expert_scale_) routed.weights = expert_scale(tape, routed.weights, routed.ids, *expert_scale_);
  if (!forward.recorded_expert_ids.empty()) {
    copy(tape.context(), tape.data(routed.ids), forward.recorded_expert_ids[index]);
  }
  return routed;
}

namespace {

std::vector<ExpertAdapter> factors_of_experts(const Parameter& weight) {
  std::vector<ExpertAdapter> adapters;
  for (const auto& attached : weight.adapters()) {
    HONE_ASSERT(attached->low_rank() != nullptr, weight.name());
    adapters.push_back({attached->low_rank()->factors, attached->place().out_begin, attached->place().out_count});
  }
  return adapters;
}

}  // namespace

Var MixtureOfExperts::router_input(Tape& tape, Var x) const {
  if (!norms_) return x;
  // As the class does it: the product with the trained scale is a plain norm's.
  const Var normed = rms_norm(tape, x, *norms_->router_scale, norms_->eps, NormWeighting::kPlain);
  const auto hidden = static_cast<double>(norms_->router_scale->shape()[0]);
  return scale(tape, normed, static_cast<float>(1 / std::sqrt(hidden)));
}

Var MixtureOfExperts::of_experts(Tape& tape, Var y) const {
  return norms_ ? rms_norm(tape, y, *norms_->after_experts, norms_->eps, norms_->weighting) : y;
}

Var MixtureOfExperts::of_shared(Tape& tape, Var x, const Forward& forward) const {
  const Var y = (*shared_expert_)(tape, {.x = x, .residual = {}}, forward);
  return norms_ ? rms_norm(tape, y, *norms_->after_shared, norms_->eps, norms_->weighting) : y;
}

Var MixtureOfExperts::operator()(Tape& tape, const FeedForwardInput& in, const Forward& forward) const {
  Var x = norms_ ? in.residual : in.x;
  const float jitter_noise = forward.methods.router_jitter_noise.value_or(jitter_noise_);
  if (tape.training() && jitter_noise > 0) {
    x = router_jitter(tape, x, {.noise = jitter_noise, .layer = layer_, .rows = forward.dropout_context()});
  }
  const RoutedTokens routed = route(tape, router_input(tape, x), forward);
  const Var shared_x = norms_ ? in.x : x;
  if (norms_) x = rms_norm(tape, x, *norms_->before_experts, norms_->eps, norms_->weighting);
  const ExpertAdapters adapters{.gate_up = factors_of_experts(*gate_up_), .down = factors_of_experts(*down_)};
  const ExpertWeights weights{.gate_up = gate_up_,
                              .down = down_,
                              .gate_up_bias = gate_up_bias_,
                              .down_bias = down_bias_,
                              .function = activation_};
  if (gate_up_->value().home().host_computed) return on_host(tape, x, shared_x, routed, weights, adapters, forward);
  const Var y = of_experts(tape, moe_experts(tape, x, routed, weights, adapters, forward.dropout_context(),
                                             forward.exchange, forward.moe_token_tile));
  return shared_expert_ ? add(tape, y, of_shared(tape, shared_x, forward)) : y;
}

Var MixtureOfExperts::on_host(Tape& tape, Var x, Var shared_x, const RoutedTokens& routed, const ExpertWeights& weights,
                              const ExpertAdapters& adapters, const Forward& forward) const {
  const std::vector<Var> there = to_host(tape, {x, routed.ids, routed.weights});
  Var y;
  tape.on_host([&] {
    y = moe_experts(tape, there[0], {.ids = there[1], .weights = there[2]}, weights, adapters, forward.on_host, nullptr,
                    forward.moe_token_tile);
  });
  // The device computes the shared expert meanwhile, in backward, too: it waits for y as late as it can.
  const Var shared = shared_expert_ ? of_shared(tape, shared_x, forward) : Var{};
  y = of_experts(tape, to_device(tape, y));
  return shared.defined() ? add(tape, y, shared) : y;
}

double MixtureOfExperts::flops(const ForwardWork& work) const {
  const int64_t experts = router_->shape()[0], of_experts = gate_up_->shape().numel() + down_->shape().numel();
  const int64_t products = router_->shape().numel() + of_experts / experts * top_k_;
  const double flops = 2 * work.tokens * static_cast<double>(products);
  return shared_expert_ ? flops + shared_expert_->flops(work) : flops;
}

ModuleSummary MixtureOfExperts::summary() const {
  std::string text =
      fmt::format("{} per layer of width {}, {} per token", router_->shape()[0], down_->shape()[2], top_k_);
  if (shared_expert_) text += (norms_ ? ", beside an MLP " : ", and a shared one ") + shared_expert_->summary().text;
  return {"experts", std::move(text)};
}

void MixtureOfExperts::collect(std::vector<Parameter*>& group) const {
  for (Parameter* parameter : {router_, router_bias_, selection_bias_, gate_up_, down_, gate_up_bias_, down_bias_}) {
    if (parameter) group.push_back(parameter);
  }
  if (norms_) {
    group.insert(group.end(),
                 {norms_->router_scale, norms_->before_experts, norms_->after_experts, norms_->after_shared});
  }
  if (expert_scale_) group.push_back(expert_scale_);
  if (shared_expert_) shared_expert_->collect(group);
}

std::unique_ptr<FeedForward> make_feed_forward(const DecoderConfig& config, int layer, ParameterStore& store,
                                               DType dtype) {
  const LayerConfig& own = config.layers[static_cast<size_t>(layer)];
  if (!own.has_feed_forward()) return nullptr;
  if (own.moe) {
    const auto sparse = [](const LayerConfig& other) { return other.moe; };
    const int64_t moe_index = std::count_if(config.layers.begin(), config.layers.begin() + layer, sparse);
    return std::make_unique<MixtureOfExperts>(config, layer, moe_index, store, dtype);
  }
  const MlpSizes sizes{.hidden = config.hidden_size,
                       .intermediate = own.intermediate_size,
                       .bias = config.mlp_bias,
                       .activation = config.activation};
  const std::string module = config.layer_module(layer) + config.names.mlp;
  if (config.names.mlp_fused) return std::make_unique<FusedMlp>(store, module, sizes, layer, dtype);
  return std::make_unique<Mlp>(store, module, sizes, layer, dtype);
}

}  // namespace hone
