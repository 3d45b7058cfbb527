"""The system account (`$SYS.>`).

Belongs here: events that the server publishes, and replies to requests about the server.

In reading order:

- `system.py`: Construction of the system account's services.
- `messages.py`: Messages of the server itself: their heads, and replies to requests for monitoring pages.
- `requests.py`: Requests that clients of any account may make.
- `system_account.py`: Requests of the system account.
- `events.py`: Events of the system account.
- `claims.py`: Requests about the tokens of accounts.
"""
