#!/usr/bin/env bash
# Records the sample runs anew and writes what `info`, `replay` and `diff` say of them.
# They are kept for ever as they are: record anew only for a new format version, under new names.
set -euo pipefail
cd "$(dirname "$0")"
dflash="${DFLASH:-python -m dflash}"
common="--max-new-tokens 32 --no-host -q"

$dflash record --prompts prompts.jsonl --drafter ngram --length 5 --branches 1 -o ngram-chain.parquet $common
$dflash record --prompts prompts.jsonl --drafter ngram --length 5 --branches 3 -o ngram-tree.parquet $common
$dflash record --prompts prompts.jsonl --drafter self --temperature 0.8 --policy match --length 4 --branches 2 \
  -o self-match.parquet $common
$dflash record --prompts prompts.jsonl --drafter self --temperature 0.8 --policy speculative --length 4 --branches 1 \
  -o self-speculative.parquet $common
$dflash record --prompts conversation.jsonl --drafter ngram --length 4 --branches 2 -o conversation.parquet $common
$dflash record --prompts prompts.jsonl --drafter ngram --length 5 --branches 3 --dense -o dense-ngram-tree.parquet $common
$dflash record --prompts prompts.jsonl --drafter self --temperature 0.8 --length 4 --branches 1 --dense \
  -o dense-self.parquet $common
for quant in none int8; do
  $dflash record --prompts prompts.jsonl --drafter ngram --length 5 --branches 1 --target-quant "$quant" \
    -o "quant-$quant.parquet" $common
done

for run in *.parquet; do
  name="${run%.parquet}"
  $dflash info "$run" --json > "$name.info.json"
  $dflash replay "$run" --policy match --policy speculative --policy threshold:t=0.7 --policy match:length=2 \
    --json > "$name.replay.json"
done
# 1: they differ
$dflash diff quant-none.parquet quant-int8.parquet --json > quant.diff.json || [ $? -eq 1 ]
