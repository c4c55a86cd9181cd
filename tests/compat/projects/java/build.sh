set -e
mkdir -p classes
javac -Xlint:all -Werror -d classes src/hello/*.java
printf 'Main-Class: hello.Main\n' >manifest
jar --create --file hello.jar --manifest manifest -C classes .
jar --list --file hello.jar
exec java -Xmx256m -jar hello.jar
