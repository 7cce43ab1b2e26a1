//! The two queues between a client and an engine: requests in, replies out. Each hop moves a batch under one short lock
//! and costs a wake only when the other side sleeps.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::call::request::{Client, RawRequest, Request, Token};
use crate::ids::InstanceIdx;
use crate::time::Time;

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
    queue: Mutex<Put<T>>,
    /// The client has said that it comes anyway.
    expected: AtomicBool,
    waker: Arc<dyn Wake>,
}

/// What the client has not taken yet.
struct Put<T> {
    items: Vec<T>,
    /// It has been woken for them.
    rung: bool,
    /// When it is to be, unless before.
    ring_by: Time,
}

impl<T> Outbox<T> {
    pub fn new(waker: Arc<dyn Wake>) -> Outbox<T> {
        let queue = Mutex::new(Put { items: Vec::new(), rung: false, ring_by: Time::NEVER });
        Outbox { queue, expected: AtomicBool::new(false), waker }
    }

    /// Hands over a batch; `batch` is left empty with its capacity. The client is woken once for all that it has not
    /// taken yet.
    pub fn put_all(&self, batch: &mut Vec<T>) {
        if !batch.is_empty() {
            self.put_by(batch, Time::ZERO, Time::ZERO, 0);
        }
    }

    /// Hands over a batch, which may be empty; `batch` is left empty with its capacity. The client is woken once for all that it
    /// has not taken yet: at the first call of this at or after the earliest `ring_by` of theirs, or when they are `enough`.
    /// When that has to be; None if it need not be woken any more.
    pub fn put_by(&self, batch: &mut Vec<T>, ring_by: Time, now: Time, enough: usize) -> Option<Time> {
        {
            let mut queue = lock(&self.queue);
            if queue.items.is_empty() {
                std::mem::swap(&mut queue.items, batch);
            } else {
                queue.items.append(batch);
            }
            queue.ring_by = queue.ring_by.min(ring_by);
            if queue.items.is_empty() || queue.rung || self.expected.load(Ordering::Relaxed) {
                return None;
            }
            if now < queue.ring_by && queue.items.len() < enough {
                return Some(queue.ring_by);
            }
            queue.rung = true;
        }
        self.waker.wake();
        None
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
        queue.rung = false;
        queue.ring_by = Time::NEVER;
        std::mem::swap(&mut queue.items, into);
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

    #[test]
    fn a_client_is_woken_when_it_is_time_or_when_there_is_enough() {
        let rings = Arc::new(Rings::default());
        let outbox = Outbox::new(Arc::clone(&rings) as Arc<dyn Wake>);
        let at = Time::from_nanos;
        let taken = || {
            let mut taken = Vec::new();
            outbox.take(&mut taken);
            taken
        };
        assert_eq!(outbox.put_by(&mut vec![1], at(30), at(10), 3), Some(at(30)));
        assert_eq!(outbox.put_by(&mut vec![2], at(20), at(11), 3), Some(at(20)), "the earliest");
        assert_eq!(outbox.put_by(&mut vec![], Time::NEVER, at(19), 3), Some(at(20)));
        assert_eq!(rings.count(), 0);
        assert_eq!(outbox.put_by(&mut vec![], Time::NEVER, at(20), 3), None, "it is time");
        assert_eq!(rings.count(), 1);
        assert_eq!(outbox.put_by(&mut vec![3], at(40), at(21), 9), None, "it has been woken");
        assert_eq!(rings.count(), 1);
        assert_eq!(taken(), [1, 2, 3]);

        assert_eq!(outbox.put_by(&mut vec![4, 5], at(40), at(30), 3), Some(at(40)));
        assert_eq!(outbox.put_by(&mut vec![6], at(50), at(31), 3), None, "enough");
        assert_eq!(rings.count(), 2);
        assert_eq!(taken(), [4, 5, 6]);

        assert_eq!(outbox.put_by(&mut vec![7], at(40), at(32), 3), Some(at(40)));
        assert_eq!(taken(), [7], "it came by itself");
        assert_eq!(outbox.put_by(&mut vec![], Time::NEVER, at(40), 3), None);
        assert_eq!(outbox.put_by(&mut vec![8], at(60), at(41), 3), Some(at(60)), "not by 40");
        outbox.expect();
        assert_eq!(outbox.put_by(&mut vec![9], at(41), at(42), 1), None, "it comes by itself");
        assert_eq!(rings.count(), 2);
        assert_eq!(taken(), [8, 9]);
        outbox.put_all(&mut vec![10]);
        assert_eq!((rings.count(), taken()), (3, vec![10]));
    }
}
