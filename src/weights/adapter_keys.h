// The keys of adapter_config.json: which are read, which change nothing that an adapter computes, and which say that it
// computes something else. Source: PEFT 0.21, LoraConfig and PeftConfig; a test compares the table with a list of its
// fields (tools/make_peft_keys.py).
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/text/json_fwd.h"

namespace hone {

struct AdapterKey {
  enum class Use {
    kRead,     ///< its value is used, or checked where it is used
    kNeutral,  ///< any value: the adapter computes the same
    kAtRest,   ///< refused unless it says nothing, or what `rest` says
  };
  /// What a key that is read may hold. null is as good as no key.
  enum class Value { kAny, kBool, kNumber, kNames };

  std::string_view name;
  Use use = Use::kRead;
  Value value = Value::kAny;
  std::string_view rest = {};  ///< JSON of the value that changes nothing; "" = nothing but what says nothing
  std::string_view why = {};   ///< what another value means: "the adapter acts on …"
  std::string_view fix = {};
};

/// The table.
std::span<const AdapterKey> adapter_keys();

/// A value of init_lora_weights: how training began. The values of A and B are in the file whatever it was, so it
/// counts only where PEFT changes the base model too, again each time that it loads the adapter.
struct AdapterStart {
  enum class Means {
    kPlain,   ///< W + scaling · B A
    kWarned,  ///< the same, but the adapter was trained on other weights
    kRefused,
  };
  std::string_view name;  ///< lower case; with a final *, a beginning
  Means means = Means::kPlain;
  std::string_view why = {};
};

std::span<const AdapterStart> adapter_starts();

/// UserError with the key for one that says that the adapter computes something else than W + scaling · B A, for one
/// that is not in the table and says something, and for a value of another type. Returns warnings.
std::vector<std::string> check_adapter_keys(const Json& config, const std::filesystem::path& path);

}  // namespace hone
