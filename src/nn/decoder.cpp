#include "nn/decoder.h"

#include <fmt/format.h>

#include <algorithm>

#include "ops/add/add.h"
#include "ops/embedding/embedding.h"
#include "ops/embedding_noise/embedding_noise.h"
#include "ops/gather_rows/gather_rows.h"
#include "ops/linear/linear.h"
#include "ops/linear_cross_entropy/linear_cross_entropy.h"
#include "ops/rms_norm/rms_norm.h"
#include "ops/soft_cap/soft_cap.h"

namespace hone {

Decoder::Decoder(DecoderConfig config, ParameterStore& store, Placement& placement, DType dtype)
    : config_(std::move(config)), store_(store), placement_(placement), dtype_(dtype) {
  store.name_in_files(config_.names.file_parts);
  const int64_t vocab = config_.vocab_size, hidden = config_.hidden_size;
  const auto norm = [&](const std::string& module, int layer) {
    return &store.add(
        {module + ".weight", {hidden}, ParameterKind::kNorm, layer, {}, FileOrder::kSame, config_.initial_norm()},
        dtype_);
  };
  embedding_ = &store.add(
      {config_.names.prefix + config_.names.embedding + ".weight", {vocab, hidden}, ParameterKind::kEmbedding, -1, {}},
      dtype_);
  embedding_group_ = &placement.group({"embedding"}, {embedding_});
  for (int i = 0; i < static_cast<int>(config_.layers.size()); ++i) {
    const std::string module = config_.layer_module(i);
    Layer layer;
    layer.mixer = make_mixer(config_, i, store, dtype_);
    layer.feed_forward = make_feed_forward(config_, i, store, dtype_);
    HONE_ASSERT(layer.mixer || layer.feed_forward, module);
    const DecoderNames& names = config_.names;
    layer.windowed = config_.layers[static_cast<size_t>(i)].sliding_window > 0;
    if (layer.mixer) {
      layer.mixer_norm = norm(module + names.mixer_norm, i);
      std::vector<Parameter*> group = {layer.mixer_norm};
      if (!names.norm_after_mixer.empty()) {
        group.push_back(layer.norm_after_mixer = norm(module + names.norm_after_mixer, i));
      }
      layer.mixer->collect(group);
      layer.mixer_group = &placement.group({fmt::format("layer {}", i), i, LayerHalf::kMixer}, group);
    }
    if (layer.feed_forward) {
      layer.feed_forward_norm = norm(module + names.feed_forward_norm, i);
      std::vector<Parameter*> group = {layer.feed_forward_norm};
      if (!names.norm_after_feed_forward.empty()) {
        group.push_back(layer.norm_after_feed_forward = norm(module + names.norm_after_feed_forward, i));
      }
      if (config_.layer_scalar) {
        layer.scalar = &store.add(
            {module + "layer_scalar", {1}, ParameterKind::kBuffer, i, {}, FileOrder::kSame, InitialValues::kOnes},
            DType::kF32);
        group.push_back(layer.scalar);
      }
      layer.feed_forward->collect(group);
      layer.feed_forward_group =
          &placement.group({fmt::format("layer {} feed-forward", i), i, LayerHalf::kFeedForward}, group);
    }
    layers_.push_back(std::move(layer));
  }
  final_norm_ = norm(config_.names.prefix + config_.names.final_norm, -1);
  head_ = config_.tie_word_embeddings
              ? embedding_
              : &store.add({"lm_head.weight", {vocab, hidden}, ParameterKind::kHead, -1, {}}, dtype_);
  final_norm_group_ = &placement.group({"final norm"}, {final_norm_});
  head_group_ = &placement.group({"head"}, {head_});
}

void Decoder::prepare(Stream& stream, int64_t max_length) {
  const auto values_of = [&](const RopeParameters& rope) {
    return rope_table_values(rope_frequencies(rope, max_length), max_length);
  };
  RopeTableValues turned = values_of(config_.rope), scaled, window;
  if (config_.window_rope) window = values_of(*config_.window_rope);
  if (const LatentConfig& latent = config_.latent; latent.query_scaling.beta != 0) {
    scaled = scaled_query_table(turned, max_length, latent.qk_nope_head_dim / 2, latent.query_scaling);
  }
  const int64_t still = config_.qk_norm_last ? max_length * config_.head_dim / 2 : 0;
  RopeTableValues unturned{.cos = std::vector<float>(static_cast<size_t>(still), 1.0f),
                           .sin = std::vector<float>(static_cast<size_t>(still), 0.0f)};
  rope_memory_ =
      Buffer(stream.device(),
             2 * sizeof(float) * (turned.cos.size() + window.cos.size() + scaled.cos.size() + unturned.cos.size()));
  size_t offset = 0;
  const auto upload = [&](std::vector<float>& values) {
    const Shape shape{max_length, static_cast<int64_t>(values.size()) / max_length};
    const Tensor table = rope_memory_.tensor(shape, DType::kF32, offset);
    offset += values.size() * sizeof(float);
    stream.upload(table, std::move(values));
    return table;
  };
  rope_.turned = {.cos = upload(turned.cos), .sin = upload(turned.sin)};
  if (config_.window_rope) window_rope_.turned = {.cos = upload(window.cos), .sin = upload(window.sin)};
  if (!scaled.cos.empty()) rope_.scaled_queries = {.cos = upload(scaled.cos), .sin = upload(scaled.sin)};
  if (still > 0) rope_.unturned = {.cos = upload(unturned.cos), .sin = upload(unturned.sin)};
  stream.synchronize();  // the host tables must outlive the copy
}

std::vector<std::vector<CacheTensor>> Decoder::cache() const {
  std::vector<std::vector<CacheTensor>> result;
  for (const Layer& layer : layers_) {
    result.push_back(layer.mixer ? layer.mixer->cache() : std::vector<CacheTensor>());
  }
  return result;
}

double Decoder::flops(const ForwardWork& work) const {
  double flops = 2 * work.supervised * static_cast<double>(head_->shape().numel());
  for (const Layer& layer : layers_) {
    if (layer.mixer) flops += layer.mixer->flops(work);
    if (layer.feed_forward) flops += layer.feed_forward->flops(work);
  }
  return flops;
}

std::vector<ModuleSummary> Decoder::summary() const {
  std::vector<ModuleSummary> result;
  const auto add = [&](const auto& half) {
    if (!half) return;
    ModuleSummary summary = half->summary();
    if (std::find(result.begin(), result.end(), summary) == result.end()) result.push_back(std::move(summary));
  };
  for (const Layer& layer : layers_) add(layer.mixer);
  for (const Layer& layer : layers_) add(layer.feed_forward);
  return result;
}

Var Decoder::layer_forward(Tape& tape, const Layer& layer, Var x, const Forward& forward) const {
  const auto eps = static_cast<float>(config_.rms_norm_eps);
  const auto residual_scale = static_cast<float>(config_.residual_multiplier);
  const NormWeighting weighting = config_.norm_weighting;
  const auto after = [&](Parameter* norm, Var y) { return norm ? rms_norm(tape, y, *norm, eps, weighting) : y; };
  Var mixed, fed;
  if (layer.mixer) {
    tape.with(*layer.mixer_group, [&] {
      const RopeTables& rope = layer.windowed && config_.window_rope ? window_rope_ : rope_;
      mixed = (*layer.mixer)(tape, rms_norm(tape, x, *layer.mixer_norm, eps, weighting), forward, rope);
      mixed = after(layer.norm_after_mixer, mixed);
    });
    if (!layer.feed_forward) return add(tape, x, mixed, residual_scale);
  }
  SumAndNorm residual{.sum = x, .y = {}};
  tape.with(*layer.feed_forward_group, [&] {
    Parameter& norm = *layer.feed_forward_norm;
    if (layer.mixer) {
      residual = add_rms_norm(tape, x, mixed, norm, eps, weighting, residual_scale);
    } else {
      residual.y = rms_norm(tape, x, norm, eps, weighting);
    }
    fed = (*layer.feed_forward)(tape, {.x = residual.y, .residual = residual.sum}, forward);
    fed = after(layer.norm_after_feed_forward, fed);
    if (layer.scalar) fed = scale(tape, add(tape, residual.sum, fed, residual_scale), *layer.scalar);
  });
  return layer.scalar ? fed : add(tape, residual.sum, fed, residual_scale);
}

Var Decoder::hidden_states(Tape& tape, const Forward& forward) const {
  Var x;
  tape.block([&] {
    tape.with(*embedding_group_,
              [&] { x = embedding(tape, forward.batch->input_ids, *embedding_, dtype_, config_.pad_token_id); });
    auto factor = static_cast<float>(config_.embedding_multiplier);
    if (config_.scaled_embedding && dtype_ == DType::kBF16) factor = static_cast<float>(BFloat16(factor));
    if (config_.scaled_embedding) x = scale(tape, x, factor);
    if (tape.training() && forward.methods.neftune_noise_alpha > 0) {
      x = embedding_noise(tape, x,
                          {.alpha = forward.methods.neftune_noise_alpha,
                           .sequences = forward.batch->sequences(),
                           .rows = forward.dropout_context()});
    }
    if (!config_.scaled_embedding) x = scale(tape, x, factor);
  });
  for (const Layer& layer : layers_) {
    tape.block([&] { x = layer_forward(tape, layer, x, forward); });
  }
  return x;
}

Var Decoder::normed(Tape& tape, Var x) const {
  Var y;
  tape.with(*final_norm_group_, [&] {
    y = rms_norm(tape, x, *final_norm_, static_cast<float>(config_.rms_norm_eps), config_.norm_weighting);
  });
  return y;
}

void Decoder::loss(Tape& tape, const Forward& forward, Tensor token_loss) const {
  const DeviceBatch& batch = *forward.batch;
  const Var x = hidden_states(tape, forward);
  tape.block([&] {
    const Var y = normed(tape, x);
    tape.with(*head_group_, [&] {
      linear_cross_entropy(tape, y, *head_, factors_of(*head_),
                           {.tokens = {.rows = batch.rows,
                                       .targets = batch.targets,
                                       .weights = batch.loss_weights,
                                       .present = batch.present},
                            .scalars = forward.step.scalars,
                            .totals = forward.step.totals,
                            .token_loss = token_loss.defined() ? token_loss.rows(0, batch.supervised) : Tensor{},
                            .logit_scale = static_cast<float>(1.0 / config_.logits_scaling),
                            .soft_cap = static_cast<float>(config_.logits_soft_cap),
                            .label_smoothing = tape.training() ? forward.methods.label_smoothing : 0.0f,
                            .dropout = forward.dropout_context()});
    });
  });
}

Var Decoder::logits(Tape& tape, const Forward& forward, Tensor rows) const {
  const Var x = hidden_states(tape, forward);
  Var logits;
  tape.block([&] {
    const Var y = normed(tape, x);
    tape.with(*head_group_, [&] {
      logits = linear(tape, gather_rows(tape, y, rows), *head_, nullptr, factors_of(*head_), forward.dropout_context());
      logits = scale(tape, logits, static_cast<float>(1.0 / config_.logits_scaling));
      logits = soft_cap(tape, logits, static_cast<float>(config_.logits_soft_cap));
      tape.expose(logits);
    });
  });
  return logits;
}

}  // namespace hone
