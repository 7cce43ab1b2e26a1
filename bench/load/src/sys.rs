//! The few things std lacks: CPU clocks, a fine timer, a flag set by Ctrl-C, children that die with their parent.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// CPU time that the calling thread has used.
pub fn thread_cpu() -> Duration {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes one timespec.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut t) };
    Duration::new(t.tv_sec as u64, t.tv_nsec as u32)
}

/// A timer as a file descriptor: epoll's own timeout counts in milliseconds, at a hundred thousand requests a second
/// that would send them in lumps of a hundred.
pub struct Timer(OwnedFd);

impl Timer {
    pub fn new() -> std::io::Result<Timer> {
        // SAFETY: plain system call; the descriptor is ours.
        unsafe {
            let fd = libc::timerfd_create(libc::CLOCK_MONOTONIC, libc::TFD_NONBLOCK | libc::TFD_CLOEXEC);
            if fd < 0 {
                return Err(std::io::Error::last_os_error());
            }
            Ok(Timer(OwnedFd::from_raw_fd(fd)))
        }
    }

    pub fn fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    pub fn arm(&self, after: Duration) {
        let zero = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        let value = libc::timespec {
            tv_sec: after.as_secs() as libc::time_t,
            // A value of zero would disarm it.
            tv_nsec: libc::c_long::from(after.subsec_nanos().max(1) as i32),
        };
        let spec = libc::itimerspec { it_interval: zero, it_value: value };
        // SAFETY: reads one itimerspec.
        unsafe { libc::timerfd_settime(self.fd(), 0, &spec, std::ptr::null_mut()) };
    }
}

static STOPPED: AtomicBool = AtomicBool::new(false);

/// From now on SIGINT and SIGTERM only set the flag that `stopped` reads, so that everything is taken down in order.
pub fn catch_signals() {
    extern "C" fn note(_: libc::c_int) {
        STOPPED.store(true, Ordering::Relaxed);
    }
    // SAFETY: the handler does nothing but store to an atomic.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = note as extern "C" fn(libc::c_int) as usize;
        libc::sigaction(libc::SIGINT, &action, std::ptr::null_mut());
        libc::sigaction(libc::SIGTERM, &action, std::ptr::null_mut());
    }
}

/// Hundreds of connections and simulated storages need more open files than a shell allows by default. What is not granted
/// shows where the first one is missing.
pub fn raise_open_files() {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: it points to a value of the right type, which outlives both calls.
    unsafe {
        if libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) == 0 {
            limit.rlim_cur = limit.rlim_max;
            libc::setrlimit(libc::RLIMIT_NOFILE, &limit);
        }
    }
}

/// As if Ctrl-C had been pressed.
pub fn stop() {
    STOPPED.store(true, Ordering::Relaxed);
}

pub fn stopped() -> bool {
    STOPPED.load(Ordering::Relaxed)
}

/// The child gets a process group of its own (Ctrl-C reaches only the driver, which then stops its children in order)
/// and is killed when the calling thread ends, however it ends. Spawn from the main thread.
pub fn tie_to_parent(command: &mut Command) {
    // SAFETY: between fork and exec only system calls that are safe there.
    unsafe {
        command.pre_exec(|| {
            libc::setpgid(0, 0);
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            Ok(())
        });
    }
}

pub fn signal(pid: u32, sig: libc::c_int) {
    // SAFETY: plain system call on a child of ours that was not waited for yet.
    unsafe { libc::kill(pid as libc::pid_t, sig) };
}
