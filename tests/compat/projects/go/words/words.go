// Package words counts.
package words

import (
	"strings"
	"sync"
)

// Count returns how often each word occurs, counted by several goroutines.
func Count(lines []string) map[string]int {
	var lock sync.Mutex
	var group sync.WaitGroup
	total := map[string]int{}
	for _, line := range lines {
		group.Add(1)
		go func(line string) {
			defer group.Done()
			for _, word := range strings.Fields(line) {
				lock.Lock()
				total[word]++
				lock.Unlock()
			}
		}(line)
	}
	group.Wait()
	return total
}
