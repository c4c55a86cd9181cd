//! Counts words, in threads.

use std::thread;

/// Returns the number of words.
///
/// ```
/// assert_eq!(hello::count("one two"), 2);
/// ```
pub fn count(text: &str) -> usize {
    let lines: Vec<String> = text.lines().map(str::to_owned).collect();
    let workers: Vec<_> = lines
        .into_iter()
        .map(|line| thread::spawn(move || line.split_whitespace().count()))
        .collect();
    workers.into_iter().map(|worker| worker.join().unwrap()).sum()
}

#[cfg(test)]
mod tests {
    #[test]
    fn counts() {
        assert_eq!(super::count("a b\nc"), 3);
    }

    #[test]
    fn starts_programs() {
        let status = std::process::Command::new("sh").args(["-c", "exit 3"]).status().unwrap();
        assert_eq!(status.code(), Some(3));
    }
}
