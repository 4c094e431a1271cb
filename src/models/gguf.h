// Architectures as GGUF files have them: names of tensors, orders of rows, and the keys that describe the model.
//
// gguf_architectures() is the table; each row is proven with llama.cpp (tools/gguf_proof.py). What a file cannot say is
// refused by name: the configuration that is read back from the keys must be the model's own.
// Sources: llama.cpp's keys and names (gguf-py/gguf/constants.py, src/llama-arch.cpp) and its graphs (src/models).
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/text/json_fwd.h"
#include "models/hf_config.h"
#include "weights/gguf_file.h"
#include "weights/gguf_tensors.h"

namespace hone {

/// What of a parameter a tensor holds.
enum class GgufPart {
  kAll,
  kGate,   ///< the first half of each matrix's rows
  kUp,     ///< the second half
  kHeads,  ///< all rows of queries or keys; halves of each head in turn where the architecture's RoPE turns neighbours
  kLatentKeys,    ///< each head's keys that latents give, as a transposed matrix
  kLatentValues,  ///< each head's values, as a matrix
  // Linear attention: groups of value heads share a key head; "tiled" are value heads of one place in their groups
  // next to one another.
  kFusedQkv,      ///< key heads with all that is theirs give queries, then keys, then values
  kFusedGates,    ///< the gates of values
  kTiledQkv,      ///< queries and keys as they are, values tiled
  kTiledValues,   ///< values, or what is as wide, tiled
  kTiledHeads,    ///< a row for each value head, tiled
  kTiledColumns,  ///< columns of values, tiled
  // Mamba-2.
  kColumn,  ///< a vector as a matrix of one column
  kGroups,  ///< a norm over groups, a row for each
};

/// One tensor of a parameter. `%` stands for the layer.
struct GgufName {
  std::string_view parameter;  ///< canonical, below the model's prefix: "layers.%.self_attn.q_proj.weight"
  std::string_view tensor;     ///< "blk.%.attn_q.weight"
  GgufPart part = GgufPart::kAll;
  bool adapts = true;  ///< llama.cpp applies a LoRA of it
};

/// A key of an architecture beside those that every architecture has.
struct GgufSetting {
  std::string_view key;  ///< below the architecture's name
  /// In config.json, below others after "/"; "": it is said otherwise there, and a file that has the key must agree.
  std::string_view field;
  std::function<GgufValue(const DecoderConfig&)> value;  ///< none: it is not written
  std::string_view absent = "";  ///< the field, as JSON, of a file without the key; "": a file must have it
  bool free = false;             ///< text does not depend on it: a file may have anything
  std::string_view unit = "";    ///< a field of config.json, of which `field` counts how many the value is; "": none
};

/// The fields of config.json that say whether attention has biases.
enum class GgufBiases {
  kNone,
  kQueries,  ///< attention_bias: queries, keys and values have
  kAll,      ///< attention_bias: the output, too; mlp_bias
};

/// One architecture of files. An architecture of Hugging Face may be written as one that the table has for another.
struct GgufArchitecture {
  std::string_view name;               ///< general.architecture
  std::string_view hf_class;           ///< as config.json of a converted file says it
  std::string_view model_type;         ///< the same
  std::vector<std::string_view> also;  ///< other classes whose models are written so
  bool experts = false;
  std::optional<int64_t> gating = {};  ///< rows of one name differ in expert_gating_func, whose default is 1
  std::optional<bool> shared = {};     ///< or in whether expert_shared_feed_forward_length is there
  bool latent = false;                 ///< attention is latent; a file has it as heads that share one latent
  bool two_heads = false;  ///< layers with a window have heads and RoPE of their own; values may be the keys (Gemma 4)
  bool mamba = false;      ///< layers without heads of keys and values are Mamba-2
  bool halves = false;     ///< a layer is a mixer or a feed-forward, as lists of heads and widths say (Nemotron-H)
  bool own_rope = false;   ///< config.json has RoPE in rope_parameters, and no rope_theta beside it
  bool optional_rope = false;     ///< a key says whether attention has RoPE; config.json lists the mixers (Granite 4)
  bool turns_neighbours = false;  ///< RoPE of halves becomes RoPE of neighbours
  bool takes_factors = false;     ///< RoPE's frequencies may have factors: rope_freqs.weight
  bool may_tie = true;            ///< the head may be the embedding
  bool wide_heads = true;         ///< heads together may have another width than the hidden state
  bool shared_heads = true;       ///< there may be fewer heads of keys and values
  bool windows = false;           ///< llama.cpp applies the sliding window
  bool yarn_between = false;      ///< the models' YaRN does not round its borders to whole dimensions; llama.cpp's does
  GgufBiases biases = GgufBiases::kNone;
  std::string_view rotary_field = "";            ///< says how much of a head RoPE rotates; "": all
  std::string_view qk_norm_field = "";           ///< says whether queries and keys have a norm; "": nothing does
  std::string_view count_field = "num_experts";  ///< the names of fields in config.json
  std::string_view used_field = "num_experts_per_tok";
  std::string_view width_field = "moe_intermediate_size";
  bool width_is_dense = false;     ///< feed_forward_length is the experts' width
  std::string_view fields = "{}";  ///< in config.json, as JSON, that all models of the row have
  std::vector<GgufSetting> settings = {};
  std::vector<GgufName> names = {};  ///< before those that all architectures have
};

const std::vector<GgufArchitecture>& gguf_architectures();

/// The row for a model. UserError with the architectures of the table, if it has none.
const GgufArchitecture& gguf_architecture_of(const HfConfig& config, const DecoderConfig& model);
/// The row for a file.
const GgufArchitecture& gguf_architecture_of(const GgufMetadata& metadata);

/// The tensors of all parameters but adapters, in the order of the store. UserError with a parameter that has no name.
std::vector<GgufTensor> gguf_tensors(const GgufArchitecture& architecture, const DecoderConfig& model,
                                     const ParameterStore& store);

/// The factors by which RoPE's frequencies are divided, rope_freqs.weight; empty: none.
std::vector<float> gguf_rope_factors(const DecoderConfig& model);
inline constexpr const char* kRopeFactors = "rope_freqs.weight";

/// What of a file's tensors belongs to its configuration.
struct GgufFacts {
  int64_t vocab_rows = 0;
  bool has_head = false, has_query_bias = false, has_output_bias = false, has_mlp_bias = false, has_query_norm = false;
  int64_t keys_without_values = 0;  ///< layers
  std::vector<float> rope_factors;

  void see(std::string_view tensor);  ///< a name
};
GgufFacts gguf_facts(const std::vector<GgufTensor>& tensors, const DecoderConfig& model);
GgufFacts gguf_facts(const GgufFile& file);

/// The keys of an architecture, to which those of the tokenizer are added. A sliding window that llama.cpp does not
/// apply bounds the context: up to it, results are the same; `notes` receives a sentence about it, and about what
/// llama.cpp computes a little otherwise. UserError for what a file cannot say.
GgufMetadata gguf_metadata(const GgufArchitecture& architecture, const HfConfig& config, const DecoderConfig& model,
                           const std::vector<GgufTensor>& tensors, std::vector<std::string>& notes);

/// config.json of a file, without what belongs to the tokenizer. UserError with a key that is missing or not known.
Json config_of_gguf(const GgufArchitecture& architecture, const GgufMetadata& metadata, const GgufFacts& facts);

}  // namespace hone
