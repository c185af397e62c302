first_rotation() {
    echo a > app.log
    "$rotlog" app.log && is "a" app.log.1 && [ ! -s app.log ] && [ -f app.log ]
}
check "a log becomes number one" first_rotation

chain() {
    echo a > app.log; echo b > app.log.1; echo c > app.log.2
    "$rotlog" app.log && is "a,b,c" app.log.1 app.log.2 app.log.3
}
check "rotated files move up" chain

limit() {
    echo a > app.log; echo b > app.log.1; echo c > app.log.2
    "$rotlog" -k 2 app.log && is "a,b" app.log.1 app.log.2 && [ ! -e app.log.3 ]
}
check "the oldest file is removed" limit

two_logs() {
    echo a > a.log; echo b > b.log
    "$rotlog" a.log b.log && is "a,b" a.log.1 b.log.1
}
check "several logs" two_logs
