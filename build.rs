//! Linker arguments of the shared library.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    if std::env::var("CARGO_CFG_TARGET_OS").is_ok_and(|os| os == "linux") {
        // The host unmaps a stored function's library when its last function is dropped or reloaded, whoever still runs
        // in it. The library has threads, so it stays.
        println!("cargo::rustc-link-arg-cdylib=-Wl,-z,nodelete");
    }
}
