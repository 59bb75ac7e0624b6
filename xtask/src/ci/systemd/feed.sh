# Hands numbered lines to clad until /srv/trial/stop is there: feed.sh NAME ADDRESS [LEVEL]
(
    i=0
    while [ ! -e /srv/trial/stop ]; do
        n=0
        while [ $n -lt 20 ]; do
            i=$((i + 1))
            n=$((n + 1))
            echo "$1 $i"
        done
        sleep 0.02
    done
    echo $i >"/srv/trial/feed-$1.count"
) | clactl append --server "$2" --ack "${3:-durable}" --component "feed-$1" >"/srv/trial/feed-$1.out" 2>&1
echo $? >"/srv/trial/feed-$1.code"
