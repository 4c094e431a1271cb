#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "app/export/gguf_export.h"
#include "app/export/gguf_tokenizer.h"
#include "app/merge/merge.h"
#include "app/output.h"
#include "core/base/error.h"
#include "core/cpu/thread_pool.h"
#include "core/text/json.h"
#include "models/gguf.h"
#include "report/humanise.h"
#include "session/loaded_model.h"
#include "weights/model_folder.h"

namespace hone {

namespace {

namespace fs = std::filesystem;

/// float32 holds every number of a file; bfloat16 does if all matrices are bfloat16.
DType exact_dtype_of(const GgufFile& file) {
  const auto& entries = file.entries();
  const bool narrow = std::all_of(entries.begin(), entries.end(), [](const GgufEntry& entry) {
    constexpr std::string_view kExact[] = {
        ".bias", "ffn_gate_inp.weight", "ssm_conv1d.weight", "ssm_norm.weight", "ssm_a", "ssm_d"};
    const bool exact = std::any_of(std::begin(kExact), std::end(kExact),
                                   [&](std::string_view end) { return entry.name.ends_with(end); });
    return entry.shape.size() < 2 || entry.type == GgufType::kBF16 || exact;
  });
  return narrow ? DType::kBF16 : DType::kF32;
}

/// A shape without dimensions of one, which some programs write and others leave out.
std::vector<int64_t> without_ones(std::vector<int64_t> shape) {
  std::erase(shape, 1);
  return shape;
}

/// Whether a tensor belongs to a layer after the model's: one that predicts further tokens.
bool is_behind(std::string_view tensor, int64_t layers) {
  constexpr std::string_view kLayer = "blk.";
  int64_t layer = -1;
  if (tensor.starts_with(kLayer)) std::from_chars(tensor.data() + kLayer.size(), tensor.data() + tensor.size(), layer);
  return layer >= layers;
}

/// UserError unless the file has these tensors, in these shapes, and in the first `layers` no others.
void require_tensors(const GgufFile& file, const std::vector<GgufTensor>& tensors, bool factors, int64_t layers) {
  std::set<std::string> known;
  if (factors) known.insert(kRopeFactors);
  for (const GgufTensor& tensor : tensors) {
    known.insert(tensor.name);
    const GgufEntry* entry = file.find(tensor.name);
    if (entry == nullptr) {
      throw UserError(fmt::format("the file has no tensor '{}'", tensor.name), file.path().string(),
                      "the file is incomplete, or one part of several: join them with llama-gguf-split --merge");
    }
    if (without_ones(entry->shape) != without_ones(tensor.shape)) {
      throw UserError(fmt::format("'{}' has another shape than its keys say", tensor.name), file.path().string(),
                      "the file is damaged: download or copy it again");
    }
  }
  for (const GgufEntry& entry : file.entries()) {
    if (known.contains(entry.name) || is_behind(entry.name, layers)) continue;
    throw UserError(fmt::format("the tensor '{}' belongs to nothing that is known of its architecture", entry.name),
                    file.path().string(), "use the model's safetensors (hone download ORG/NAME)");
  }
}

void require_model(const GgufFile& file) {
  const std::string type = file.metadata().text("general.type").value_or("model");
  if (type != "model") {
    throw UserError(fmt::format("the file is of the type '{}', not a model", type), file.path().string(),
                    "give the file of a model");
  }
  if (file.metadata().integer("split.count").value_or(1) > 1) {
    throw UserError("the file is one part of several", file.path().string(),
                    "join them with llama-gguf-split --merge of llama.cpp");
  }
}

}  // namespace

int run_gguf_import(const GgufImportOptions& options) {
  const std::optional<DType> stated = parse_weight_dtype(options.dtype, "convert");
  require_apart(options.output, {{options.input, "the GGUF file"}});
  require_free_folder(options.output, options.force);
  const GgufFile file(options.input);
  require_model(file);
  const GgufArchitecture& architecture = gguf_architecture_of(file.metadata());
  Json config = config_of_gguf(architecture, file.metadata(), gguf_facts(file));
  const std::optional<GgufVocabulary> vocabulary = tokenizer_keys(file.metadata());
  std::optional<TokenizerFiles> tokenizer;
  if (vocabulary) {
    if (static_cast<int64_t>(vocabulary->tokens.size()) > config["vocab_size"].get<int64_t>()) {
      throw UserError("the file has more tokens than rows of its embedding", options.input);
    }
    tokenizer = tokenizer_of_gguf(*vocabulary, config["max_position_embeddings"].get<int64_t>(), options.input);
    for (const auto& [key, value] : tokenizer->generation->items()) config[key] = value;
    if (vocabulary->eos) config["eos_token_id"] = *vocabulary->eos;
  }
  const DType dtype = stated.value_or(exact_dtype_of(file));
  config["dtype"] = name_of(dtype);
  LoadedModel model(HfConfig(config, options.input), options.output, dtype);
  const std::vector<GgufTensor> tensors =
      gguf_tensors(architecture, read_decoder_config(model.config()), model.store());
  const int64_t layers = config["num_hidden_layers"].get<int64_t>();
  require_tensors(file, tensors, architecture.takes_factors || architecture.two_heads, layers);
  const std::vector<TensorFile> files = files_of_gguf(file, tensors, model.store(), dtype, options.max_shard_size);
  ThreadPool pool(0);
  write_directory(options.output, [&](const fs::path& temporary, FileChecksums& checksums) {
    write_text_file(temporary / "config.json", config.dump(2) + "\n");
    if (tokenizer) {
      write_text_file(temporary / "tokenizer.json", tokenizer->tokenizer.dump());
      write_text_file(temporary / "tokenizer_config.json", tokenizer->config->dump(2) + "\n");
      write_text_file(temporary / "generation_config.json", tokenizer->generation->dump(2) + "\n");
      if (!tokenizer->chat_template.empty()) {
        write_text_file(temporary / "chat_template.jinja", tokenizer->chat_template);
      }
    }
    write_files(temporary, files, &checksums, &pool);
    write_index(temporary, files);
    file.require_unchanged();
    LoadedModel(temporary, dtype);  // throws if it is incomplete
  });
  std::string said;
  if (std::any_of(file.entries().begin(), file.entries().end(),
                  [&](const GgufEntry& entry) { return is_behind(entry.name, layers); })) {
    said += "note: the layers that predict further tokens are left out\n";
  }
  if (!tokenizer) said += "note: the file has no tokenizer, so the folder has none\n";
  print_text(said + fmt::format("{}: {} tensors of {} in {}\n", options.output, tensors.size(), architecture.hf_class,
                                name_of(dtype)));
  return 0;
}

}  // namespace hone
