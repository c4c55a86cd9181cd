fn main() {
    println!("{} {}", env!("BUILT_BY"), hello::count("one two\nthree"));
    std::process::exit(5);
}
