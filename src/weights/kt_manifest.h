// The manifest of KTransformers' adapters. kt_adapter_manifest.json states an adapter's base model, rank and alpha, and
// lists its files with their sizes and SHA-256 digests. KTransformers loads fused_expert_lora.safetensors only with a
// manifest, and only if these statements are those of its own run.
//
// Source: kvcache-ai/ktransformers, kt-kernel/python/sft/artifacts.py; the schema is version 1.
#pragma once

#include <filesystem>

namespace hone {

inline constexpr const char* kKtManifestName = "kt_adapter_manifest.json";

/// Writes the manifest of the complete adapter in `folder`; does nothing if the folder has no
/// fused_expert_lora.safetensors.
void write_kt_manifest(const std::filesystem::path& folder);

/// UserError with the first file of the folder's manifest that is missing, or has another size or digest, and with the
/// first tensor of fused_expert_lora.safetensors that is not as the manifest lists it. A folder
/// without a manifest is right: earlier versions of KTransformers wrote none.
void check_kt_manifest(const std::filesystem::path& folder);

}  // namespace hone
