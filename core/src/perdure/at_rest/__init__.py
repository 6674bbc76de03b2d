"""Data at rest: codecs that encrypt and compress what a journal keeps, on every backend.

codec = [Compression(), Encryption(KeyRing.parse(os.environ["PERDURE_KEYS"]))]
async with perdure.open_store("sqlite:agent.db", codec=codec) as store:
    ...
"""

from perdure.at_rest.codecs import Codec, Codecs, Location
from perdure.at_rest.compression import Compression
from perdure.at_rest.encoded_journal import EncodedJournal
from perdure.at_rest.encryption import Encryption, encryption_from_environment
from perdure.at_rest.key_ring import KeyRing
from perdure.at_rest.reencryption import ReencryptReport, reencrypt

__all__ = [
    "Codec",
    "Codecs",
    "Compression",
    "EncodedJournal",
    "Encryption",
    "KeyRing",
    "Location",
    "ReencryptReport",
    "encryption_from_environment",
    "reencrypt",
]
