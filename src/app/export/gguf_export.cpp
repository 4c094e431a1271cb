#include "app/export/gguf_export.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <map>
#include <vector>

#include "app/export/gguf_tokenizer.h"
#include "app/inference/inference_model.h"
#include "app/output.h"
#include "core/base/error.h"
#include "models/gguf.h"
#include "params/adapter_kind.h"
#include "report/humanise.h"
#include "session/loaded_model.h"
#include "session/model_path.h"
#include "text/tiktoken.h"
#include "weights/adapter_folder.h"

namespace hone {

namespace {

namespace fs = std::filesystem;

constexpr const char* kMergeFirst =
    "merge it first (hone export without --format gguf, or hone merge), and export the result";

const GgufFormat& parse_type(const std::string& type) {
  if (const GgufFormat* format = written_gguf_format(type)) return *format;
  throw UserError(fmt::format("'{}' is not a type of GGUF files that are written", type), "--type",
                  "use f32, f16, bf16, q8_0 or q4_0; llama-quantize of llama.cpp makes K-quants of a bf16 file");
}

/// The type that most elements of the files have, so that little is rounded.
const GgufFormat& type_of_files(const Checkpoint& checkpoint) {
  std::map<DType, int64_t> elements;
  for (const auto& [name, tensor] : checkpoint.tensors()) elements[tensor.entry->dtype] += tensor.entry->numel();
  const auto most = std::max_element(elements.begin(), elements.end(),
                                     [](const auto& a, const auto& b) { return a.second < b.second; });
  if (most != elements.end() && most->first == DType::kF32) return gguf_format(GgufType::kF32);
  if (most != elements.end() && most->first == DType::kF16) return gguf_format(GgufType::kF16);
  return gguf_format(GgufType::kBF16);  // quantised weights, too
}

/// The embedding and the head lose most in 4 bits.
GgufType type_of(const GgufTensor& tensor, GgufType type) {
  const ParameterKind kind = tensor.parameter->spec().kind;
  const bool outer = kind == ParameterKind::kEmbedding || kind == ParameterKind::kHead;
  return gguf_type_of(tensor, type == GgufType::kQ4_0 && outer ? GgufType::kQ8_0 : type);
}

std::string model_name(const fs::path& directory) {
  const std::string name = fs::absolute(directory / "").parent_path().filename().string();
  return name.empty() ? "model" : name;
}

/// Writes a file, complete or not at all. `write` fills the writer, which it is given.
void write_gguf(const fs::path& output, const OutputRule& rule, const GgufMetadata& metadata,
                std::vector<GgufWriter::Announced> tensors, const std::function<void(GgufWriter&)>& write) {
  std::error_code error;
  if (output.has_parent_path()) fs::create_directories(output.parent_path(), error);
  GgufWriter writer(output, metadata, std::move(tensors));
  write(writer);
  place_output(writer.complete(), output, rule);
}

void export_whole(const GgufExportOptions& options) {
  if (!options.model.empty()) throw UserError("the base is named for a whole model", "--model", "leave it out");
  const fs::path directory = resolve_model_path(options.input);
  const OutputRule rule = output_rule({{directory, "the model"}}, options.force);
  require_output(options.output, rule);
  LoadedModel model(directory, DType::kF32);
  model.set_trainable(TrainableOptions::nothing());
  const GgufFormat& format = options.type.empty() ? type_of_files(model.checkpoint()) : parse_type(options.type);
  const DecoderConfig& decoder = model.decoder().config();
  const GgufArchitecture& architecture = gguf_architecture_of(model.config(), decoder);
  const std::vector<GgufTensor> tensors = gguf_tensors(architecture, decoder, model.store());
  std::vector<std::string> notes;
  GgufMetadata metadata = gguf_metadata(architecture, model.config(), decoder, tensors, notes);
  metadata.set("general.name", model_name(directory));
  metadata.set("general.file_type", format.file_type);
  metadata.set("general.quantization_version", int64_t{2});
  std::optional<GgufVocabulary> vocabulary;
  if (has_tokenizer(directory)) {
    vocabulary = gguf_vocabulary(directory, decoder.vocab_size, notes);
  } else {
    notes.push_back("the folder has no tokenizer, so the file has none: it takes and gives token ids");
  }
  set_tokenizer_keys(vocabulary, metadata);
  if (!model.map().carried.empty()) {
    notes.push_back(fmt::format("{} tensors of the folder that the text model does not use are left out ({})",
                                model.map().carried.size(), model.map().carried.front()));
  }
  std::vector<GgufWriter::Announced> announced;
  const std::vector<float> factors = gguf_rope_factors(decoder);
  if (!factors.empty()) {
    announced.push_back({kRopeFactors, GgufType::kF32, {static_cast<int64_t>(factors.size())}});
  }
  for (const GgufTensor& tensor : tensors) {
    announced.push_back({tensor.name, type_of(tensor, format.type), tensor.shape});
  }
  write_gguf(options.output, rule, metadata, announced, [&](GgufWriter& writer) {
    if (!factors.empty()) writer.write_floats(factors);
    for (const GgufTensor& tensor : tensors) {
      write_gguf_tensor(writer, tensor, model.checkpoint(), model.map().layouts.at(tensor.parameter));
    }
    model.checkpoint().require_unchanged();
  });
  std::string said;
  for (const std::string& note : notes) said += fmt::format("note: {}\n", note);
  print_text(said + fmt::format("{}: {} tensors of {} in {}, {}\n", options.output, announced.size(), architecture.name,
                                format.name, human_bytes(static_cast<int64_t>(fs::file_size(options.output)))));
}

/// A and B of a LoRA as two tensors of the file, for one tensor of the base.
struct GgufLora {
  const GgufTensor* tensor;
  const AttachedAdapter* adapter;
};

/// Rows of a matrix of the parameter.
int64_t outputs(const Parameter& parameter) { return parameter.shape()[-2]; }

GgufLora lora_of(const GgufTensor& tensor, const AttachedAdapter& adapter) {
  const LowRank* low_rank = adapter.low_rank();
  const ParameterKind kind = tensor.parameter->spec().kind;
  if (low_rank == nullptr || !adapter.kind().key.empty()) {
    throw UserError(fmt::format("llama.cpp has no adapters of the kind {}", adapter.kind().name),
                    tensor.parameter->name(), kMergeFirst);
  }
  if (kind == ParameterKind::kEmbedding || kind == ParameterKind::kHead || kind == ParameterKind::kRouter) {
    throw UserError("adapters of the embedding, the head and routers are not written for llama.cpp",
                    tensor.parameter->name(), kMergeFirst);
  }
  if (!tensor.adapts) {
    throw UserError(fmt::format("llama.cpp does not apply an adapter of '{}' as the model does", tensor.name),
                    tensor.parameter->name(), kMergeFirst);
  }
  return {&tensor, &adapter};
}

/// The adapter's tensors of the parts that it changes.
std::vector<GgufLora> loras_of(const std::vector<GgufTensor>& tensors) {
  std::vector<GgufLora> loras;
  for (const GgufTensor& tensor : tensors) {
    for (const auto& adapter : tensor.parameter->adapters()) {
      const int64_t begin = tensor.rows.parameter_row(0) % outputs(*tensor.parameter);
      const AdapterPlace& place = adapter->place();
      if (begin < place.out_begin || begin >= place.out_begin + place.out_count) continue;
      loras.push_back(lora_of(tensor, *adapter));
    }
  }
  return loras;
}

std::vector<int64_t> with_matrix(std::vector<int64_t> shape, int64_t rows, int64_t columns) {
  shape[shape.size() - 2] = rows;
  shape.back() = columns;
  return shape;
}

/// B with the rows of the file's tensor, times `factor`.
std::vector<float> rows_of_b(const GgufLora& lora, float factor) {
  const LowRank& low_rank = *lora.adapter->low_rank();
  const AdapterPlace& place = lora.adapter->place();
  const int64_t rank = lora.adapter->scale().rank, out = outputs(*lora.tensor->parameter);
  const auto* b = low_rank.b->value().whole().as<float>();
  std::vector<float> rows;
  for (int64_t row = 0; row < lora.tensor->rows.rows(); ++row) {
    const int64_t of = lora.tensor->rows.parameter_row(row);
    const int64_t from = of / out * place.out_count + of % out - place.out_begin;
    for (int64_t i = 0; i < rank; ++i) rows.push_back(b[from * rank + i] * factor);
  }
  return rows;
}

/// A with the columns of the file's tensor.
std::vector<float> columns_of_a(const GgufLora& lora) {
  const Tensor& a = lora.adapter->low_rank()->a->value().whole();
  std::vector<float> values(a.as<float>(), a.as<float>() + a.numel());
  if (const std::optional<RowGrid>& order = lora.tensor->column_order) {
    const int64_t columns = lora.tensor->columns();
    for (int64_t i = 0; i < a.numel(); ++i) {
      values[static_cast<size_t>(i)] = a.as<float>()[i / columns * columns + order->parameter_row(i % columns)];
    }
  }
  return values;
}

void export_adapter(const GgufExportOptions& options) {
  const std::string base = options.model.empty() ? base_of_adapter(options.input) : options.model;
  const fs::path directory = resolve_model_path(base);
  const OutputRule rule = output_rule({{options.input, "the adapter"}, {directory, "the base model"}}, options.force);
  require_output(options.output, rule);
  const GgufFormat& format = parse_type(options.type.empty() ? "f32" : options.type);
  if (format.values > 1) throw UserError("adapters are not quantised", "--type", "use f32, f16 or bf16");
  LoadedModel model(directory, DType::kF32, dense_format(), vocab_rows_of_adapter(options.input));
  model.set_trainable(TrainableOptions::nothing(options.input));
  const DecoderConfig& decoder = model.decoder().config();
  const GgufArchitecture& architecture = gguf_architecture_of(model.config(), decoder);
  for (const Parameter& p : model.store().all()) {
    if (!p.trainable() || p.spec().kind == ParameterKind::kLora) continue;
    throw UserError("the adapter has a weight in full, which an adapter of llama.cpp cannot hold", p.name(),
                    kMergeFirst);
  }
  const std::vector<GgufTensor> tensors = gguf_tensors(architecture, decoder, model.store());
  const std::vector<GgufLora> loras = loras_of(tensors);
  if (loras.empty()) throw UserError("the adapter changes no weight", options.input);
  model.store().allocate_trainable_values(Device{});  // the base model's weights are not read
  load_adapter(options.input, model.store());
  // llama.cpp multiplies by alpha / rank, with one alpha: what an adapter has else is in its B.
  const double alpha = model.lora()->alpha;
  GgufMetadata metadata;
  metadata.set("general.architecture", std::string(architecture.name));
  metadata.set("general.type", std::string("adapter"));
  metadata.set("general.name", model_name(options.input));
  metadata.set("general.file_type", format.file_type);
  metadata.set("adapter.type", std::string("lora"));
  metadata.set("adapter.lora.alpha", alpha);
  std::vector<GgufWriter::Announced> announced;
  for (const auto& [tensor, adapter] : loras) {
    const int64_t rank = adapter->scale().rank;
    announced.push_back(
        {tensor->name + ".lora_a", format.type, with_matrix(tensor->shape, rank, tensor->shape.back())});
    announced.push_back({tensor->name + ".lora_b", format.type,
                         with_matrix(tensor->shape, tensor->shape[tensor->shape.size() - 2], rank)});
  }
  write_gguf(options.output, rule, metadata, announced, [&](GgufWriter& writer) {
    for (const GgufLora& lora : loras) {
      const LowRank& low_rank = *lora.adapter->low_rank();
      const auto file_scale = static_cast<float>(alpha / static_cast<double>(lora.adapter->scale().rank));
      writer.write_floats(columns_of_a(lora));
      writer.write_floats(rows_of_b(lora, low_rank.factors.scaling / file_scale));
    }
  });
  std::string said;
  for (const std::string& warning : model.adapter_warnings()) said += fmt::format("warning: {}\n", warning);
  print_text(said + fmt::format("{}: LoRA of {} tensors of {}, for llama.cpp's --lora\n", options.output, loras.size(),
                                architecture.name));
}

}  // namespace

int run_gguf_export(const GgufExportOptions& given) {
  GgufExportOptions options = given;
  if (is_hub_name(given.input)) options.input = resolve_model_path(given.input).string();
  is_adapter_folder(options.input) ? export_adapter(options) : export_whole(options);
  return 0;
}

}  // namespace hone
