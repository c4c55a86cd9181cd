package words

import (
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

func TestCount(t *testing.T) {
	lines := make([]string, 200)
	for i := range lines {
		lines[i] = "a b a"
	}
	if got := Count(lines)["a"]; got != 400 {
		t.Fatalf("counted %d", got)
	}
}

func TestStartsPrograms(t *testing.T) {
	out, err := exec.Command("sh", "-c", "echo from a test; exit 3").CombinedOutput()
	if exit, ok := err.(*exec.ExitError); !ok || exit.ExitCode() != 3 || strings.TrimSpace(string(out)) != "from a test" {
		t.Fatalf("%q %v", out, err)
	}
}

func TestWritesFiles(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestServes(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusTeapot)
	}))
	defer server.Close()
	answer, err := http.Get(server.URL)
	if err != nil || answer.StatusCode != http.StatusTeapot {
		t.Fatal(answer, err)
	}
}

func TestUnixSocket(t *testing.T) {
	listener, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	listener.Close()
}

func BenchmarkCount(b *testing.B) {
	for i := 0; i < b.N; i++ {
		Count([]string{"a b", "c d"})
	}
}
