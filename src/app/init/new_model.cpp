#include "app/init/new_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "app/model_source.h"
#include "app/output.h"
#include "core/error.h"
#include "core/file_bytes.h"
#include "core/thread_pool.h"
#include "core/untrusted_json.h"
#include "models/registry.h"
#include "params/random_weights.h"
#include "report/humanise.h"
#include "session/device_facts.h"
#include "text/tokenizer.h"
#include "weights/checkpoint.h"
#include "weights/model_folder.h"
#include "weights/quantization.h"

namespace hone {

namespace {

namespace fs = std::filesystem;

HfConfig read_config(const std::string& path) {
  const fs::path file = fs::is_directory(path) ? fs::path(path) / "config.json" : fs::path(path);
  Json json = parse_json(std::string_view(read_whole_file(file, kMostTextBytes, FileSource::kAlsoPipe)));
  if (!json.is_object()) throw UserError("config.json is not a JSON object", file.string());
  return HfConfig(std::move(json), file.string());
}

DType dtype_of(const NewModelOptions& options, const HfConfig& config) {
  const std::string name =
      options.dtype.empty() ? config.string_or("dtype", config.string_or("torch_dtype", "bfloat16")) : options.dtype;
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    if (name_of(dtype) == name) return dtype;
  }
  throw UserError(fmt::format("a new model cannot be written in {}", name), options.dtype.empty() ? config.file() : "",
                  "use --dtype bfloat16 or --dtype float32");
}

/// A config may ask for a model of any size.
void require_memory(const ParameterStore& store, const HfConfig& config) {
  double bytes = 0;
  for (const Parameter& p : store.all()) {
    double elements = 1;
    for (int i = 0; i < p.shape().rank(); ++i) elements *= static_cast<double>(p.shape()[i]);
    bytes += elements * static_cast<double>(size_of(p.dtype()));
  }
  const auto free = static_cast<double>(available_host_memory());
  if (bytes <= free) return;
  throw UserError(fmt::format("the model has {} of weights, {} are free", human_bytes(bytes), human_bytes(free)),
                  config.file(), "make it smaller, or use a machine with more memory");
}

/// Copies what belongs to a tokenizer.
void copy_tokenizer(const fs::path& from, const fs::path& to) {
  for (const char* name : {"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja",
                           "generation_config.json"}) {
    if (fs::exists(from / name)) fs::copy_file(from / name, to / name);
  }
}

void check_tokenizer(const std::string& directory, int64_t vocab_size) {
  if (directory.empty()) return;
  const int32_t tokens = Tokenizer::load(directory).vocab_size();
  if (tokens <= vocab_size) return;
  throw UserError(fmt::format("the tokenizer has {} tokens, vocab_size is {}", tokens, vocab_size), directory,
                  fmt::format("set vocab_size to {} or more in the config", tokens));
}

}  // namespace

void initialise_weights(ParameterStore& store, double initializer_range, uint64_t seed, ThreadPool& pool) {
  Stream stream(Device{}, pool);
  Arena scratch(Device{}, "initialise");
  scratch.reserve(0);
  initialise_weights(Context(stream, scratch), store, initializer_range, seed);
  stream.synchronize();
}

int run_new_model(const NewModelOptions& options) {
  require_apart(options.output, {{options.config, "the configuration"}, {options.tokenizer, "the tokenizer"}});
  require_free_folder(options.output, options.force);
  const HfConfig config = read_config(options.config);
  const DecoderConfig decoder_config = read_decoder_config(config);
  const DType dtype = dtype_of(options, config);
  check_tokenizer(options.tokenizer, decoder_config.vocab_size);
  ParameterStore store;
  Placement placement;
  const Decoder decoder(decoder_config, store, placement, dtype);
  require_memory(store, config);
  store.allocate(Device{}, true);
  ThreadPool pool(options.threads);
  initialise_weights(store, decoder_config.initializer_range, options.seed, pool);
  Json json = unquantized_config(config.json());
  json.erase("torch_dtype");
  json["dtype"] = std::string(name_of(dtype));
  if (!json.contains("architectures")) json["architectures"] = {config.architecture()};
  write_directory(options.output, [&](const fs::path& temporary, FileChecksums& checksums) {
    if (!options.tokenizer.empty()) copy_tokenizer(options.tokenizer, temporary);
    write_text_file(temporary / "config.json", json.dump(2) + "\n");
    save_parameters(temporary, store, nullptr, nullptr, {.checksums = &checksums});
  });
  const GroupCount total = total_of(count_groups(store, decoder_config.moe));
  print_text(fmt::format("{}: {} with {} parameters ({} active for each token), {}, seed {}\n", options.output,
                         config.architecture(), human_count(static_cast<double>(total.parameters)),
                         human_count(static_cast<double>(total.active)), name_of(dtype), options.seed));
  return 0;
}

}  // namespace hone
