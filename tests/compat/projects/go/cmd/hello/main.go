// Hello prints the words of its input.
package main

import (
	"bufio"
	"fmt"
	"os"
	"sort"

	"example.invalid/hello/words"
)

func main() {
	var lines []string
	for scanner := bufio.NewScanner(os.Stdin); scanner.Scan(); {
		lines = append(lines, scanner.Text())
	}
	counted := words.Count(lines)
	var names []string
	for name := range counted {
		names = append(names, name)
	}
	sort.Strings(names)
	for _, name := range names {
		fmt.Println(name, counted[name])
	}
	os.Exit(len(names))
}
