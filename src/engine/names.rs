//! Host names become addresses on threads of their own: the system's resolver may take seconds, and an engine has others to
//! serve meanwhile.

use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::Arc;

use crate::engine::inbox::{Inbox, Message};
use crate::ids::InstanceIdx;

/// The address that a name spells out, if it does.
pub fn literal(host: &str, port: u16) -> Option<SocketAddr> {
    host.parse::<IpAddr>().ok().map(|ip| SocketAddr::new(ip, port))
}

/// Asks the resolver; what it says comes into `inbox`. The thread is not joined: it ends when the resolver does, and an
/// engine that has stopped does not mind the message.
pub fn look_up(host: String, port: u16, idx: InstanceIdx, inbox: Arc<Inbox>) -> io::Result<()> {
    let ask = move || {
        let addresses = (host.as_str(), port).to_socket_addrs().map(Iterator::collect::<Vec<SocketAddr>>);
        inbox.post(Message::Resolved(idx, addresses));
    };
    std::thread::Builder::new().name("rawshard-dns".into()).spawn(ask).map(drop)
}
