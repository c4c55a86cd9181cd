#[test]
fn counts_from_outside() {
    assert_eq!(hello::count("x y z"), 3);
}

#[test]
#[should_panic]
fn panics() {
    panic!("on purpose");
}
