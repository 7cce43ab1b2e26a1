//! The two queues between a client and an engine: requests in, replies out. Each hop moves a batch under one short lock
//! and costs a wake only when the other side sleeps.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::call::request::{Client, RawRequest, Request, Token};
use crate::ids::InstanceIdx;

/// Makes a sleeping thread look at its queue. Callable from any thread, any number of times.
pub trait Wake: Send + Sync {
    fn wake(&self);
}

#[derive(Debug)]
pub enum Message {
    Call(Request),
    Raw(RawRequest),
    /// The caller has left: no reply is wanted any more.
    Cancel(Client, Token),
    /// Forget what is known of connections' pauses: reconnect now. Sent after a reconfiguration.
    Refresh,
    /// A new topology is there, or news of instances: whoever waits for such is to be looked at.
    Topology,
    /// Addresses of the name of an instance, for the thread itself.
    Resolved(InstanceIdx, io::Result<Vec<SocketAddr>>),
    /// End all calls with an error and leave the loop.
    Stop,
}

impl Message {
    /// The call that it brings, if it brings one.
    pub fn call(&self) -> Option<(Client, Token)> {
        match self {
            Message::Call(request) => Some((request.client, request.token)),
            Message::Raw(request) => Some((Client::Host, request.token)),
            _ => None,
        }
    }
}

/// Into an engine. Any thread posts, the engine's thread takes.
pub struct Inbox {
    queue: Mutex<Queue>,
    /// True while the engine may be blocked in its poller: whoever posts then must wake it.
    sleeping: AtomicBool,
    /// Something is in the queue: a hint for who looks without the lock.
    filled: AtomicBool,
    waker: Arc<dyn Wake>,
}

#[derive(Default)]
struct Queue {
    messages: Vec<Message>,
    /// Nobody takes any more.
    closed: bool,
}

impl Inbox {
    pub fn new(waker: Arc<dyn Wake>) -> Inbox {
        Inbox {
            queue: Mutex::default(),
            sleeping: AtomicBool::new(false),
            filled: AtomicBool::new(false),
            waker,
        }
    }

    /// Lost if the engine has left.
    pub fn post(&self, message: Message) {
        self.post_all(&mut vec![message]);
    }

    /// Posts a batch; `batch` is left empty with its capacity. False: the engine has left, and the batch is as it was.
    pub fn post_all(&self, batch: &mut Vec<Message>) -> bool {
        {
            let mut queue = lock(&self.queue);
            if queue.closed {
                return false;
            }
            if queue.messages.is_empty() {
                std::mem::swap(&mut queue.messages, batch);
            } else {
                queue.messages.append(batch);
            }
            self.filled.store(true, Ordering::Relaxed);
        }
        self.signal();
        true
    }

    /// Takes all that was posted; `into` must be empty.
    pub fn take(&self, into: &mut Vec<Message>) {
        let mut queue = lock(&self.queue);
        self.filled.store(false, Ordering::Relaxed);
        std::mem::swap(&mut queue.messages, into);
    }

    /// Whether something was posted, as far as it is seen without waiting for anybody.
    pub fn is_filled(&self) -> bool {
        self.filled.load(Ordering::Relaxed)
    }

    /// Takes the last messages there will be.
    pub fn close(&self) -> Vec<Message> {
        let mut queue = lock(&self.queue);
        queue.closed = true;
        std::mem::take(&mut queue.messages)
    }

    /// Announces that the engine is about to block. False: something came meanwhile, don't.
    pub fn prepare_sleep(&self) -> bool {
        // SeqCst with the load in `signal`: either the poster sees `sleeping`, or we see its message.
        self.sleeping.store(true, Ordering::SeqCst);
        let empty = lock(&self.queue).messages.is_empty();
        if !empty {
            self.sleeping.store(false, Ordering::SeqCst);
        }
        empty
    }

    pub fn awake(&self) {
        self.sleeping.store(false, Ordering::SeqCst);
    }

    fn signal(&self) {
        if self.sleeping.load(Ordering::SeqCst) && self.sleeping.swap(false, Ordering::SeqCst) {
            self.waker.wake();
        }
    }
}

/// Out of an engine to one client: replies, or reports. The engine's thread puts batches, the client takes.
pub struct Outbox<T> {
    queue: Mutex<Vec<T>>,
    /// The client has said that it comes anyway.
    expected: AtomicBool,
    waker: Arc<dyn Wake>,
}

impl<T> Outbox<T> {
    pub fn new(waker: Arc<dyn Wake>) -> Outbox<T> {
        Outbox { queue: Mutex::new(Vec::new()), expected: AtomicBool::new(false), waker }
    }

    /// Hands over a batch; `batch` is left empty with its capacity. The client is woken once for all that it has not
    /// taken yet.
    pub fn put_all(&self, batch: &mut Vec<T>) {
        if batch.is_empty() {
            return;
        }
        let rings = {
            let mut queue = lock(&self.queue);
            let first = queue.is_empty();
            if first {
                std::mem::swap(&mut *queue, batch);
            } else {
                queue.append(batch);
            }
            first && !self.expected.load(Ordering::Relaxed)
        };
        if rings {
            self.waker.wake();
        }
    }

    /// The client is about to [`Outbox::take`]: until then it need not be woken.
    pub fn expect(&self) {
        // Whoever puts before it is seen wakes for nothing, no more.
        self.expected.store(true, Ordering::Relaxed);
    }

    /// Takes all there is; `into` must be empty.
    pub fn take(&self, into: &mut Vec<T>) {
        let mut queue = lock(&self.queue);
        // Under the lock: what was put before, silently, is taken now; what comes after it wakes.
        self.expected.store(false, Ordering::Relaxed);
        std::mem::swap(&mut *queue, into);
    }
}

/// A panic under one of these locks cannot leave a queue half changed: pushes and swaps are whole.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;

    #[derive(Default)]
    struct Rings(AtomicUsize);

    impl Wake for Rings {
        fn wake(&self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    impl Rings {
        fn count(&self) -> usize {
            self.0.load(Ordering::Relaxed)
        }
    }

    #[test]
    fn an_engine_is_woken_only_where_it_sleeps() {
        let rings = Arc::new(Rings::default());
        let inbox = Inbox::new(Arc::clone(&rings) as Arc<dyn Wake>);
        inbox.post(Message::Refresh);
        assert_eq!((rings.count(), inbox.is_filled()), (0, true));
        assert!(!inbox.prepare_sleep(), "there is a message");
        let mut taken = Vec::new();
        inbox.take(&mut taken);
        assert_eq!((taken.len(), inbox.is_filled()), (1, false));
        assert!(inbox.prepare_sleep());
        inbox.post(Message::Refresh);
        inbox.post(Message::Refresh);
        assert_eq!((rings.count(), inbox.is_filled()), (1, true), "once for both");
    }

    #[test]
    fn a_client_that_comes_anyway_is_not_woken() {
        let rings = Arc::new(Rings::default());
        let outbox = Outbox::new(Arc::clone(&rings) as Arc<dyn Wake>);
        let taken = || {
            let mut taken = Vec::new();
            outbox.take(&mut taken);
            taken
        };
        outbox.put_all(&mut vec![1]);
        outbox.put_all(&mut vec![2]);
        assert_eq!(rings.count(), 1, "once for what it has not taken yet");
        assert_eq!(taken(), [1, 2]);
        outbox.expect();
        outbox.put_all(&mut vec![3]);
        assert_eq!(rings.count(), 1);
        assert_eq!(taken(), [3]);
        outbox.put_all(&mut vec![4]);
        assert_eq!(rings.count(), 2, "it came, and does not come again by itself");
        assert_eq!(taken(), [4]);
    }
}
