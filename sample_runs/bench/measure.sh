#!/usr/bin/env bash
# Measures on this GPU most of what the page beside this says of one, and leaves raw documents in a folder. A
# part ends by itself or is ended by Ctrl-C after its seconds; those of decoding leave what they have by then.
#
#   measure.sh OUT PROMPTS.jsonl [CODE.jsonl TRANSLATION.jsonl]
#
#   PARTS="steps decode8"   some parts only: steps llama kernels decode1 decode8 decode64 mixed
#   DFLASH="python -m dflash"
set -uo pipefail
out="$1" prompts="$2" code="${3:-}" translation="${4:-}"
dflash="${DFLASH:-python -m dflash}"
parts="${PARTS:-steps llama decode1 decode8 decode64 mixed kernels}"
goodput="match:control=goodput,control.scope=stream,control.shortest=0"
mkdir -p "$out"

part() {  # name, seconds, words of the command
  local name="$1" seconds="$2"
  shift 2
  [[ " $parts " == *" $name "* ]] || return 0
  echo "== $name" >&2
  timeout --foreground -k 20 -s INT "$seconds" $dflash bench "$@" --json > "$out/$name.json.partial"
  local code=$?
  # 124 and 130: it was ended, with a document if anything was measured
  if [[ -s "$out/$name.json.partial" ]]; then
    mv "$out/$name.json.partial" "$out/$name.json"
  else
    rm -f "$out/$name.json.partial"
  fi
  echo "== $name: exit code $code" >&2
}

decode=(decode --prompts "$prompts" --max-new-tokens 128 --repeats 3)
static=()
for length in 1 2 3 5 7; do static+=(--policy "match:length=$length"); done

part steps 200 step --compare --shape smollm2-135m
part llama 200 step --compare --shape llama-3.2-1b --shape llama-3.1-8b --no-compiled
part decode1 120 "${decode[@]}" --lanes 1
part decode8 300 "${decode[@]}" --lanes 8 --policy match --policy "$goodput" \
  --features fingerprint --features all --feature-dtype int8 --dense --groups
part decode64 300 "${decode[@]}" --lanes 64 --policy match --policy match:length=2 --policy "$goodput" \
  --features fingerprint --features all --feature-dtype int8 --groups
if [[ " $parts " == *" mixed "* && -z "$translation" ]]; then
  echo "== mixed: left out, it needs CODE.jsonl and TRANSLATION.jsonl" >&2
else
  part mixed 300 decode --prompts "$code" --prompts "$translation" --max-new-tokens 128 --repeats 3 --lanes 8 \
    --no-recorded "${static[@]}" --policy "$goodput"
fi
part kernels 600 kernels --no-gate --seconds 480
