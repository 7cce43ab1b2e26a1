pub fn main(_: &[String]) -> Result<(), String> {
    Ok(())
}
