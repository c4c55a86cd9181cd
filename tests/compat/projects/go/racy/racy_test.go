package racy

import "testing"

// TestRace is wrong on purpose: only the race detector sees it.
func TestRace(t *testing.T) {
	counter := 0
	done := make(chan bool)
	go func() { counter++; done <- true }()
	counter++
	<-done
	if counter == 0 {
		t.Fatal()
	}
}
