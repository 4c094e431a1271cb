// hone export to GGUF, and hone convert of GGUF files.
#pragma once

#include <cstdint>
#include <string>

namespace hone {

struct GgufExportOptions {
  std::string input;   ///< a model's folder (or name on the hub), or an adapter's
  std::string output;  ///< file to write
  std::string model;   ///< base of an adapter; "" = the base stated in its folder
  std::string type;    ///< f32, f16, bf16, q8_0 or q4_0; "" = the dtype of most of the model's files
  bool force = false;  ///< replace `output`
};

/// Writes a model, or the LoRA of an adapter's folder, as one GGUF file for llama.cpp (models/gguf.h), a tensor's piece
/// at a time. Norms, biases and routers stay float32; in q4_0 the embedding and the head are q8_0; rows that blocks do
/// not divide are f16. An adapter is float32 unless `type` is f16 or bf16. Returns the exit code. UserError for what
/// GGUF files cannot say; nothing is written then.
int run_gguf_export(const GgufExportOptions& options);

struct GgufImportOptions {
  std::string input;                       ///< a GGUF file
  std::string output;                      ///< folder to write
  std::string dtype = {};                  ///< float32 or bfloat16; "" = bfloat16 if all matrices have it, else float32
  int64_t max_shard_size = 5'000'000'000;  ///< bytes
  bool force = false;                      ///< replace the model in `output`
};

/// Reads a model of a GGUF file into a Hugging Face folder: config.json, safetensors, the tokenizer with its chat
/// template. Quantised numbers become what they stand for. Returns the exit code. UserError for a damaged file, for an
/// architecture or a tokenizer that is not known, and for tensors that the architecture does not have.
int run_gguf_import(const GgufImportOptions& options);

}  // namespace hone
