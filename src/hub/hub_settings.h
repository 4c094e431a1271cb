// What the environment says about the hub, in the variables of huggingface_hub, so that both programs agree.
#pragma once

#include <filesystem>
#include <string>

#include "hub/url.h"

namespace hone {

struct HubSettings {
  Url endpoint;                 ///< HF_ENDPOINT; its path is a prefix, without '/' at its end
  std::string token;            ///< HF_TOKEN, or the file of HF_TOKEN_PATH (HF_HOME/token); "": none
  std::filesystem::path cache;  ///< HF_HUB_CACHE, HUGGINGFACE_HUB_CACHE, HF_HOME/hub, or ~/.cache/huggingface/hub
  bool offline = false;         ///< HF_HUB_OFFLINE or TRANSFORMERS_OFFLINE

  /// The address of `path` (encoded, without '/' in front) at the endpoint.
  Url address(const std::string& path) const;
};

/// Throws UserError for an endpoint that is no address or has no TLS (except on this machine), and for a token that is
/// not one word.
HubSettings hub_settings();

/// The cache alone: needs no valid endpoint.
std::filesystem::path hub_cache_folder();

}  // namespace hone
