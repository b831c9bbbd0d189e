# Sends a text to a webhook of the kind `standard`, as a job of a CI system does: sh tell_room.sh ADDRESS SECRET_FILE TEXT
secret=$(cut -c 7- "$2" | base64 -d | od -An -tx1 | tr -d ' \n')
id=job_$(openssl rand -hex 12)
time=$(date +%s)
signature=$(printf '%s.%s.%s' "$id" "$time" "$3" | openssl dgst -sha256 -mac HMAC -macopt "hexkey:$secret" -binary | base64)
printf '%s' "$3" | curl -sS --fail-with-body --retry 5 --data-binary @- "$1" -H "Content-Type: text/plain; charset=utf-8" \
  -H "webhook-id: $id" -H "webhook-timestamp: $time" -H "webhook-signature: v1,$signature"
