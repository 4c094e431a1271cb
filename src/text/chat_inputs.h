// The inputs of a chat template as template values, and the register of which input each is.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "text/chat_template.h"
#include "text/jinja/value.h"

namespace hone {

/// Turns JSON into values, gives each a source number, and remembers what the numbers mean.
class ChatInputs {
 public:
  /// The variables of a rendering. Throws UserError as ChatTemplate::render does.
  std::vector<std::pair<std::string, jinja::Value>> context(const ChatInput& input);

  /// Message and kind of a source; template text for kTemplateText.
  struct Origin {
    int message_index = -1;
    SpanKind kind = SpanKind::kTemplate;
  };
  Origin origin(jinja::SourceId source) const { return sources_[source].origin; }

  /// Sets `text`, `spans` and `messages` from a rendering.
  void describe(const jinja::MarkedString& text, RenderedChat& chat) const;

 private:
  struct Source {
    Origin origin;
    bool counted = false;  ///< its characters count for the coverage
    std::string text;      ///< of strings
  };

  jinja::SourceId add(const Origin& origin);
  jinja::Value convert(const Json& json, const Origin& origin, bool counted, int depth);
  jinja::Value convert_string(const std::string& text, const Origin& origin, bool counted);
  jinja::Value convert_message(const Json& message, int index);
  std::vector<Span> run_spans(const jinja::MarkedString& text, std::vector<std::vector<bool>>& shown) const;
  void count_rendered(const std::vector<std::vector<bool>>& shown, RenderedChat& chat) const;

  std::vector<Source> sources_ = std::vector<Source>(1);
  std::vector<std::string> roles_;
};

}  // namespace hone
