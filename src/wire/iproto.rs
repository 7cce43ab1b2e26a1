pub fn begin_call_body(_buffer: &mut Vec<u8>, _func: &str) {}
