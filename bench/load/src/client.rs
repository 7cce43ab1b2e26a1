//! A blocking IPROTO client for everything that is not measured: readiness, counters, filling the storages.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use crate::mp::{self, Val};

pub struct Client {
    sock: TcpStream,
    sync: u64,
}

impl Client {
    pub fn connect(addr: SocketAddr) -> Result<Client, String> {
        let mut sock =
            TcpStream::connect_timeout(&addr, Duration::from_secs(2)).map_err(|e| e.to_string())?;
        sock.set_read_timeout(Some(Duration::from_secs(30))).map_err(|e| e.to_string())?;
        sock.set_nodelay(true).map_err(|e| e.to_string())?;
        let mut greeting = [0; 128];
        sock.read_exact(&mut greeting).map_err(|e| e.to_string())?;
        Ok(Client { sock, sync: 0 })
    }

    /// Calls a function; `args` writes the array of arguments. Gives the returned values.
    pub fn call(&mut self, func: &str, args: impl FnOnce(&mut Vec<u8>)) -> Result<Vec<Val>, String> {
        self.sync += 1;
        let mut b = vec![0xce, 0, 0, 0, 0, 0x82, 0x00, 0x0a, 0x01];
        mp::uint(&mut b, self.sync);
        mp::map(&mut b, 2);
        mp::uint(&mut b, 0x22);
        mp::string(&mut b, func);
        mp::uint(&mut b, 0x21);
        args(&mut b);
        let len = (b.len() - 5) as u32;
        b[1..5].copy_from_slice(&len.to_be_bytes());
        self.sock.write_all(&b).map_err(|e| format!("{func}: {e}"))?;
        let mut head = [0; 5];
        self.sock.read_exact(&mut head).map_err(|e| format!("{func}: {e}"))?;
        let mut frame = vec![0; u32::from_be_bytes([head[1], head[2], head[3], head[4]]) as usize];
        self.sock.read_exact(&mut frame).map_err(|e| format!("{func}: {e}"))?;
        let mut rest = &frame[..];
        let header = mp::read(&mut rest).ok_or("broken header")?;
        let body =
            if rest.is_empty() { Val::Map(Vec::new()) } else { mp::read_all(rest).ok_or("broken body")? };
        let kind = header.at(0).and_then(Val::f64).unwrap_or(-1.0);
        if kind != 0.0 {
            let message = body.at(0x31).and_then(Val::str).unwrap_or("unknown error");
            return Err(format!("{func}: {message}"));
        }
        Ok(body.at(0x30).map(|v| v.items().to_vec()).unwrap_or_default())
    }

    /// Calls a function without arguments that returns one map.
    pub fn ask(&mut self, func: &str) -> Result<Val, String> {
        let mut values = self.call(func, |b| mp::array(b, 0))?;
        if values.is_empty() { Err(format!("{func} returned nothing")) } else { Ok(values.swap_remove(0)) }
    }
}
