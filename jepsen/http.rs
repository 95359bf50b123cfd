//! An HTTP/1.1 client that sends whatever it is told to, right or wrong.

use std::io::{self, Read as _, Write as _};
use std::net::{TcpStream, ToSocketAddrs as _};
use std::time::Duration;

use serde_json::Value;

/// For a connection to stand.
const CONNECT: Duration = Duration::from_secs(2);
/// For an answer to come: more than any request's own limit but a long wait.
const ANSWER: Duration = Duration::from_secs(20);

/// What a node answered.
#[derive(Debug, Clone)]
pub struct Answer {
    /// The status.
    pub status: u16,
    /// Names in lower case.
    pub headers: Vec<(String, String)>,
    /// The body.
    pub body: Vec<u8>,
}

impl Answer {
    /// A header that is there at most once.
    ///
    /// # Panics
    /// When it is there more often.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        let mut found = self.headers.iter().filter(|(known, _)| known == name);
        let value = found.next().map(|(_, value)| value.as_str());
        assert!(found.next().is_none(), "{name} is there twice: {self:?}");
        value
    }

    /// The body as JSON, if it is.
    #[must_use]
    pub fn json(&self) -> Option<Value> {
        serde_json::from_slice(&self.body).ok()
    }

    /// The body as JSON.
    ///
    /// # Panics
    /// When it is not.
    #[must_use]
    pub fn body(&self) -> Value {
        self.json().unwrap_or_else(|| panic!("no JSON: {self:?}"))
    }
}

/// A connection to a node. Requests go out as given; answers come back in order.
#[derive(Debug)]
pub struct Connection {
    stream: TcpStream,
    read: Vec<u8>,
}

impl Connection {
    /// Dials.
    ///
    /// # Errors
    /// The network's own; nothing was sent.
    pub fn open(address: &str) -> io::Result<Self> {
        let address = address.to_socket_addrs()?.next().ok_or(io::ErrorKind::NotFound)?;
        let stream = TcpStream::connect_timeout(&address, CONNECT)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(ANSWER))?;
        stream.set_write_timeout(Some(ANSWER))?;
        Ok(Self { stream, read: Vec::new() })
    }

    /// Whether the node has not closed an idle connection: what is sent on one that it has closed
    /// would end unknown for no reason.
    #[must_use]
    pub fn stands(&self) -> bool {
        let peek = |stream: &TcpStream| {
            stream.set_nonblocking(true)?;
            let peeked = stream.peek(&mut [0]);
            stream.set_nonblocking(false)?;
            peeked
        };
        peek(&self.stream).is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
    }

    /// The socket itself.
    #[must_use]
    pub fn stream(&self) -> &TcpStream {
        &self.stream
    }

    /// Sends bytes as they are.
    ///
    /// # Errors
    /// The network's own.
    pub fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes)
    }

    /// Reads bytes until the node closes the connection, but not for ever.
    ///
    /// # Errors
    /// The network's own, and a node that does not close it.
    pub fn read_to_end(&mut self) -> io::Result<Vec<u8>> {
        let mut bytes = std::mem::take(&mut self.read);
        match self.stream.read_to_end(&mut bytes) {
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => Ok(bytes),
            ended => ended.map(|_| bytes),
        }
    }

    /// The answer to the next request.
    ///
    /// # Errors
    /// The network's own, and what is no answer.
    pub fn answer(&mut self) -> io::Result<Answer> {
        self.answer_to(false)
    }

    /// The answer to the next request; that to a HEAD has no body, whatever its length says.
    ///
    /// # Errors
    /// The network's own, and what is no answer.
    pub fn answer_to(&mut self, is_head: bool) -> io::Result<Answer> {
        loop {
            let head = self.head()?;
            let Some(mut answer) = parse_head(&head) else {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "no answer"));
            };
            if answer.status == 100 {
                continue;
            }
            let length = answer.header("content-length").map_or(Some(0), |text| text.parse().ok());
            let length = if is_head || answer.status == 204 { Some(0) } else { length };
            let length: usize = length.ok_or(io::ErrorKind::InvalidData)?;
            while self.read.len() < length {
                self.more()?;
            }
            answer.body = self.read.drain(..length).collect();
            return Ok(answer);
        }
    }

    fn head(&mut self) -> io::Result<String> {
        loop {
            if let Some(end) = self.read.windows(4).position(|four| four == b"\r\n\r\n") {
                let head: Vec<u8> = self.read.drain(..end + 4).collect();
                return String::from_utf8(head).map_err(io::Error::other);
            }
            self.more()?;
        }
    }

    fn more(&mut self) -> io::Result<()> {
        let mut some = [0; 16 * 1024];
        let read = self.stream.read(&mut some)?;
        if read == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.read.extend_from_slice(&some[..read]);
        Ok(())
    }

    /// Sends a request and reads its answer.
    ///
    /// # Errors
    /// The network's own.
    pub fn ask(
        &mut self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> io::Result<Answer> {
        self.send(&request(method, path, headers, body))?;
        self.answer_to(method == "HEAD")
    }
}

fn parse_head(head: &str) -> Option<Answer> {
    let mut lines = head.trim_end().split("\r\n");
    let status = lines.next()?.strip_prefix("HTTP/1.1 ")?.get(..3)?.parse().ok()?;
    let header = |line: &str| {
        let (name, value) = line.split_once(':')?;
        Some((name.to_ascii_lowercase(), value.trim().to_owned()))
    };
    let headers = lines.map(header).collect::<Option<_>>()?;
    Some(Answer { status, headers, body: Vec::new() })
}

/// A request's bytes. A Host of its own replaces the usual one.
#[must_use]
pub fn request(method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Vec<u8> {
    let mut head = format!("{method} {path} HTTP/1.1\r\nContent-Length: {}\r\n", body.len());
    if !headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("host")) {
        head.push_str("Host: 127.0.0.1\r\n");
    }
    for (name, value) in headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    head.push_str("\r\n");
    [head.as_bytes(), body].concat()
}

/// Asks on a connection of its own.
///
/// # Errors
/// The network's own.
pub fn ask(address: &str, method: &str, path: &str, body: &[u8]) -> io::Result<Answer> {
    Connection::open(address)?.ask(method, path, &[], body)
}

/// Gets on a connection of its own.
///
/// # Errors
/// The network's own.
pub fn get(address: &str, path: &str) -> io::Result<Answer> {
    ask(address, "GET", path, b"")
}

/// Posts JSON on a connection of its own.
///
/// # Panics
/// When there is no answer.
#[must_use]
pub fn post(address: &str, path: &str, body: &Value) -> Answer {
    ask(address, "POST", path, body.to_string().as_bytes()).unwrap()
}
