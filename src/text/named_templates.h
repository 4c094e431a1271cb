// Chat templates that are built in and chosen by name, for base models, whose tokenizers have none.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer.h"

namespace hone {

/// The text of ordinary chats (system, user, assistant; thoughts where the format has them) is that of the template
/// which is published under this name. Chats with tools need the model's own template: where a published template
/// renders them and this one does not, it refuses them.
struct NamedTemplate {
  std::string name;
  std::vector<std::string> also = {};    ///< other names of it
  std::string text;                      ///< Jinja
  std::vector<std::string> tokens = {};  ///< special tokens that it writes, besides bos_token and eos_token
  std::string stop = {};                 ///< the token that ends an answer; "": eos_token
};

const std::vector<NamedTemplate>& named_templates();

/// The template of this name, in lower case or not, with - or _; null if there is none.
const NamedTemplate* find_named_template(std::string_view name);

std::vector<std::string> template_name_list();
/// The names, separated by commas.
std::string template_names();

/// Throws UserError at `where` with the tokens that the template needs and the tokenizer does not have as one token
/// each.
void require_tokens(const NamedTemplate& wanted, const Tokenizer& tokenizer, const std::string& where);

/// `choice` with the template's stop token among those that end a turn; `choice` itself without a stop token.
TokenChoice with_stop(TokenChoice choice, const NamedTemplate& wanted);

/// The template of a run.
struct ChosenTemplate {
  std::string text;  ///< Jinja; "" = the model's own
  std::string note;  ///< what to tell the user, or ""
};

/// `stated`: a name, Jinja or "". A tokenizer's own template is chosen where it renders plain chats as the named one
/// does, since it may know tools, too; where it renders them otherwise, the note says so. Throws as
/// require_tokens does, and if the named one ends answers with an eos_token that the tokenizer does not state.
ChosenTemplate choose_template(const std::string& stated, const Tokenizer& tokenizer, const std::string& where);

}  // namespace hone
