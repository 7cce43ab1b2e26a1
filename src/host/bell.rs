//! The bell that engines ring for TX: an eventfd. Any thread rings, one fiber waits.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use crate::engine::inbox::Wake;

pub struct Bell {
    file: File,
}

impl Bell {
    pub fn new() -> io::Result<Bell> {
        // SAFETY: the call takes no pointers.
        let fd = unsafe { libc::eventfd(0, libc::EFD_NONBLOCK | libc::EFD_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a fresh descriptor that nobody else owns.
        Ok(Bell { file: File::from(unsafe { OwnedFd::from_raw_fd(fd) }) })
    }

    pub fn fd(&self) -> RawFd {
        self.file.as_raw_fd()
    }

    /// Makes it silent until it is rung again.
    pub fn hush(&self) {
        // Nothing to read means that it is silent.
        let _ = (&self.file).read(&mut [0; 8]);
    }
}

impl Wake for Bell {
    fn wake(&self) {
        // The only failure is a full counter, and then it rings anyway.
        let _ = (&self.file).write(&1u64.to_ne_bytes());
    }
}
