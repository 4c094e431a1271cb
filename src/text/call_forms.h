// The forms in which models write calls of tools, and which of them a chat template writes.
// Source: the chat templates of the released models that each row names.
#pragma once

#include <array>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/text/json_fwd.h"
#include "text/chat_template.h"

namespace hone {

/// What stands between the marks of a call.
enum class CallBody {
  kJson,       ///< {"name": …, "arguments" or "parameters": …, "id": …}, or a list of these
  kArguments,  ///< the name, then the arguments as JSON
  kPairs,      ///< the name, then each argument between marks: text as it is, other values as JSON
  kBraces,     ///< the name, then {key:value,…}; text stands between value_begin and value_end
  kChannels,   ///< messages with a header each, which names a channel and the function; the arguments as JSON
};

/// Where a call has its id, beside JSON's member "id".
enum class CallId { kNone, kBeforeName, kAfterName, kIsName };

/// How a call is written: [section_begin] (begin … end)* [section_end]. Empty marks are not written.
struct CallForm {
  std::string_view models;                  ///< that write it
  std::array<std::string_view, 2> written;  ///< both are in what the template writes for a call
  CallBody body;
  std::string_view section_begin = "", section_end = "";  ///< kChannels: around a message
  std::string_view begin = "";                            ///< "": the whole answer is a call of a known tool
  std::string_view end = "";                              ///< "": a call ends with its JSON
  std::string_view name_begin = "", name_end = "";
  std::string_view key_begin = "", key_end = "", value_begin = "", value_end = "";
  CallId id = CallId::kNone;
  std::string_view id_mark = "";  ///< between name and id
  bool lines = false;             ///< values stand on lines of their own
};

/// All forms; of several that fit a template, the first is its form.
std::span<const CallForm> call_forms();

/// All marks of a form that are not empty.
std::vector<std::string_view> marks_of(const CallForm& form);

/// The form in which the template writes the call of a tool or, where it takes none, which its source names; null: none
/// that is known. `variables` as in ChatInput.
const CallForm* find_call_form(const ChatTemplate& chat_template, std::string_view source, const Json& variables);

}  // namespace hone
